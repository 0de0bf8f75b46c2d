"""The common part of the families with a screen; not a family itself.

`actions` reads computer-use calls and short commands, `episode` plays the turns of a task on a computer, `evaluators` verify it in
OSWorld's shape, `rewriting` changes it, `replay` begins it inside a success, `lending` shares browsers and machines, `processes`
starts programs under a guard process.
"""
