"""The demo: a newcomer's first look at the closed loop, driven through the same APIs that every user has.

settings    what is played and trained, and for how long
warm_start  the models that the loop starts from, made once and cached
episodes    one held-out task before and after training, with votes
report      the table and the HTML page, with the dashboard's curves
"""
