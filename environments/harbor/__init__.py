"""Harbor tasks: folders of an instruction, a container, tests and a solution."""
