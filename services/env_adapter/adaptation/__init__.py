"""How tasks change: outcome in, changed tasks out. docs/adaptation.md tells the whole of it.

worker       the job of the queue: a lease round `adapter`
adapter      adaptation as a plain object: counts, then asks the run's controller
controller   the protocol of controllers, `none` and `mixed`
llm_rewrite  a rewrite by a language model, measured before it is taken
ladder       a fresh task from a window of difficulty levels
drafter      from a slot that should change to a proposal: menu, critic, rewriter, checks
critic       what went wrong (or too well), in two stages, in two sentences a trajectory
rewriter     a menu of changes, an answer held to it, what the answer means (`schema`: what escapes it)
checks       the first candidate of which everything is proved; `solver` proves by playing
ledger       the slot's states in SQL, one transaction a transition; `pairs` what the measurements say, `caps` what is too much
endpoints    which models answer
"""
