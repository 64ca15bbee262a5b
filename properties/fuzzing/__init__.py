"""The nightly job: draws cases for as long as it may, loses none, and reduces what fails.

`job` is the process that a person starts. It runs no case: `worker` does, in processes that may
crash or hang, each with a `journal` of what it has begun and ended. `suite` draws the cases that
the test files of this package draw, `ledger` counts what the journals say, `findings` tells a new
failure from a known one, `reducer` makes it small, `exchange` shares it with other machines.
"""
