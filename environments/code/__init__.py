"""Writing programs: generated problems and problems of one's own, judged by hidden tests in a sandbox."""
