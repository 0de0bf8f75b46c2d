"""`make chaos`: a whole deployment of real processes, hurt at random moments, and what the store says afterwards.

stack       `triforge up`'s own processes with tiny models, their engines behind proxies, the artifacts on a small disk
blows       what is done to them: kill, freeze, cut, fill, corrupt, delay, repeat
scenarios   a run, one or more blows at seeded random moments, the end of the run
evidence    what SQL, the Parquet record, the weight folders and Redis say of the run; never what a log says
invariants  what must hold of every run, however it was hurt
"""
