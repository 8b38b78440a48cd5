"""Workers by HTTP: each lease is one request in the hands of one worker of Majordomo, which this process is."""
