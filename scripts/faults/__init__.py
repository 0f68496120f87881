"""Disturbs runs, lets them go on, and compares them with undisturbed runs to the last bit.

    uv run python -m scripts.faults --kills 1000 --disks 200 --flips 150 \\
        --record results/faults/campaign.json

`kinds` has what is run: a run of every family of tasks, compiled steps, lanes, a sweep, and the
commands `reproduce run` and `reproduce report --record`. `processes` starts and kills them,
`compare` says what they leave, `campaign` has the three kinds of disturbance:

- Kills (SIGKILL, of a process with all that it has started) come at random moments between its
  start and a little after its usual end; every third kill waits until some file is half written.
  Each command is killed up to four times, and is then left to end. It is *lost* if it does not end
  well, and *unreadable* if it refuses what it finds. It *differs* if its runs' rows, final states
  or summaries, or what else it writes, are not those of the undisturbed command.
- A full disk is a tmpfs (which needs root) on which the command has room for a random part of what
  it writes; its failure is *unclear* unless it says that no space is left, without a traceback.
- A flipped bit of a file of a run that was killed, or has ended, is *noticed* if a refusal in one
  line names the file, *mended* if the file is written again and the result is the undisturbed one,
  and *harmless* if the file stays and the result is that all the same. All else is *unnoticed*.

The record is written after each kind of run; `--resume` keeps the kinds that it has already.
"""
