"""The pipeline beside its limits: what Spark reads, archives and writes, and what there is to be had.

    make bench-spark
    python -m benchmarks.pipeline --rows 1000000 --rounds 3

Three comparisons, each with its limit measured in the same round: reading a ring against a bare LMDB cursor that
touches each record; the archive against Spark writing the same rows to Parquet with nothing around it; the sink
against the same client without Spark. Figures are medians of rounds; ratios are of medians.
"""
