"""triforge: the policy acts, the reward model judges, the tasks adapt; all three improve in a closed loop.

This package is the hall: messages, errors, config, algorithms, rollout, rendering, clients, queues, store, testing
and the command line. Every room in `services/` enters the hall; the hall enters none.
"""

__version__ = "0.1.0"
