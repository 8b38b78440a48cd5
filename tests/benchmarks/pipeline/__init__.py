"""The pipeline beside its limits: what Spark reads, archives and writes, and what there is to be had.

    make bench-spark
    python -m benchmarks.pipeline --rows 1000000 --rounds 3

Three comparisons, each with its limit measured in the same round: reading a ring against a bare LMDB cursor that
touches each record; the archive against pyarrow writing rows to Parquet that are in memory already; the sink against
one client without Spark that has several messages on their way. What else stands in the table (the ring to Parquet
without an archive, a client with one message on its way) says where the rest of the time goes: no ratio is of that.
Figures are medians of rounds; ratios are of medians.
"""
