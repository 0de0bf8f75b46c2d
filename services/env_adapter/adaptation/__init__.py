"""How tasks change: a group's outcome in, changed tasks out; docs/adaptation.md is the reader's guide.

In the order of the algorithm:

worker       the job of the queue `adapt`: a lease round `adapter`
adapter      count the outcome, then ask the run's controller
controllers  what a training group leads to: none, llm_rewrite, mixed, a plug-in; `ladder` beside them
proposals    from a slot outside the band to a proposal: menu, diagnosis, rewriter, candidate checks
diagnosis    what went wrong (or too well), in two sentences a trajectory
rewriter     a menu of changes, an answer constrained to it, what the answer means
candidates   the first candidate of which everything is proved, by reading or by playing
measurement  outcomes and proposals in SQL: pairs, the acceptance test, the slot's next version
limits       why a slot is not rewritten now, why an accepted rewrite is not taken
endpoints    which models answer
"""
