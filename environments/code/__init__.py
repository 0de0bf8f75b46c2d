"""Writing programs: generated problems, HumanEval, and problems of one's own, judged by hidden tests in a sandbox."""
