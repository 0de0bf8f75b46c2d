"""What the families with a screen share: the action format, child processes that never outlive us, PNG files.

Not a family itself. `actions` and `keys` read computer-use calls and short commands, `turns` counts them, `processes`
starts programs under a keeper, `png` writes screenshots, `shell` makes an environment of blocking code,
`computer` plays the turns of a task on a computer, `evaluators` verify it in OSWorld's shape.
"""
