"""What the families with a screen share: the action format, child processes that never outlive us, PNG files.

Not a family itself. `actions` reads computer-use calls and short commands, `episode` plays the turns of a task on a computer,
`evaluators` verify it in OSWorld's shape, `lending` shares browsers and machines, `processes` starts programs under a guard process, `png` writes screenshots.
"""
