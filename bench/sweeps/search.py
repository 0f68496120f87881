"""A search by optuna: asks for trials, makes their runs, and tells what became of them.

A trial is an ordinary run, or some with different seeds.
"""

import math
import shlex
import shutil
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bench.core.settings import BadSetting
from bench.runs import exit_codes, stop
from bench.runs.better import Way
from bench.runs.files import write_json
from bench.runs.folder import SWEEP_SUMMARY, RunFolder
from bench.runs.launch import describe_change, place, resolve
from bench.runs.loggers import set_labels, tell_offline
from bench.sweeps import sweep
from bench.sweeps.closing import Made, labels_of, print_closing
from bench.sweeps.composing import Composer
from bench.sweeps.jobs import Job, state_of
from bench.sweeps.launchers import Launcher
from bench.sweeps.pruning import (
    FACTOR,
    STUDY,
    Direction,
    Pruning,
    Watch,
    forget_unfinished,
    is_left,
    mend,
    open_study,
    storage_of,
)
from bench.sweeps.space import Space
from bench.sweeps.workers import keep_workers

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import JournalStorage
    from optuna.trial import FrozenTrial

Sampler = Literal["tpe", "random"]
JOURNAL = "optuna.journal"
RUNGS = 2  # of pruners that have any, besides the run's end
SHOWN = 10  # trials of the closing table, and reasons above the table
FINE = ("pruned", "diverged")  # that some trials end so is what a search is for


class Aim(NamedTuple):
    """What is searched for: the metric, and which of its values are good."""

    metric: str
    direction: Direction

    @property
    def good(self) -> Way:
        return "higher" if self.direction == "maximize" else "lower"

    @property
    def worst(self) -> float:
        """The value of a run that diverged."""
        return -math.inf if self.direction == "maximize" else math.inf


@dataclass
class Trial:
    """A trial of the search. id is optuna's; texts are the values of what is searched; was_over
    says whether an earlier command has made it."""

    number: int
    id: int
    texts: dict[str, str]
    runs: list[sweep.SweepRun]
    outcomes: list[sweep.Outcome]
    was_over: bool = False

    @property
    def words(self) -> str:
        return " ".join(f"{key}={text}" for key, text in self.texts.items())


class Search:
    """A search that is being made, in a folder that this process has locked."""

    def __init__(
        self,
        compose: Composer,
        space: Space,
        settings: dict[str, Any],
        launcher: Launcher,
        folder: Path,
        aim: Aim,
        first: dict[str, Any],
    ):
        """first: the configuration of some run."""
        self.compose, self.space, self.settings = compose, space, settings
        self.launcher, self.folder, self.aim = launcher, folder, aim
        self.base_seed, run = first["seed"], first["run"]
        self.retry_failed = bool(run["retry_failed"])
        rung = max(run["every"], run["steps"] // FACTOR**RUNGS)
        self.pruning = Pruning(settings["pruner"], rung, run["steps"])
        self.journal = folder / JOURNAL
        self.trials: list[Trial] = []
        self.begun = 0  # when the search was started, on the clock of the file system

    def open(self) -> None:
        """Open the journal, and take over the trials that an earlier process has left."""
        mend(self.journal)
        self.read_journal()
        known = self.study.get_trials(deepcopy=False)
        left = [trial for trial in known if is_left(trial, self.retry_failed)]
        if left and not self.someone_makes(left):
            wanted, direction = self.space.parts.keys(), self.aim.direction
            forget_unfinished(self.journal, self.pruning, direction, wanted, self.retry_failed)
            self.read_journal()

    def read_journal(self) -> None:
        """Take what optuna knows from the journal, which is made if it is not there."""
        self.storage: JournalStorage = storage_of(self.journal)
        self.study: Study = open_study(self.storage, self.pruning, self.aim.direction)

    def someone_makes(self, left: Sequence["FrozenTrial"]) -> bool:
        """Whether another process, such as a job of SLURM, makes a run of these trials now."""
        whole = [known for known in left if known.params.keys() == self.space.parts.keys()]
        trials = [self.trial(known.number, known.params) for known in whole]
        return any(run.folder and run.folder.owner() for trial in trials for run in trial.runs)

    def make(self) -> None:
        """Make trials until there are as many as asked for."""
        left = []
        for known in self.study.get_trials(deepcopy=False):
            if known.params.keys() != self.space.parts.keys():
                continue  # a kill cut this trial short: in an older version, or beside others
            trial = self.trial(known.number, known.params)
            self.trials.append(trial)
            if known.state.is_finished():
                trial.outcomes, trial.was_over = outcomes_before(trial), True
            else:
                left.append(trial)
        over = len(self.trials) - len(left)
        self.progress = sweep.Overall(max(self.settings["n_trials"], over), over, "trial")
        with ExitStack() as around:
            around.enter_context(stop.heed())
            around.enter_context(self.progress.bar)
            around.enter_context(keep_workers())
            while left or len(self.trials) < self.settings["n_trials"]:
                batch, left = left[: self.settings["n_jobs"]], left[self.settings["n_jobs"] :]
                missing = self.settings["n_trials"] - len(self.trials)
                for _ in range(min(self.settings["n_jobs"] - len(batch), missing)):
                    batch.append(self.ask())
                goes_on = self.make_batch(batch)
                if not goes_on and self.settings["n_jobs"] == 1:
                    return  # the next trials would be chosen without this one's value
                if all(o.status == "refused" for trial in self.trials for o in trial.outcomes):
                    return

    def ask(self) -> Trial:
        """A new trial, whose values optuna chooses by what it knows."""
        number = len(self.study.get_trials(deepcopy=False))
        # sorted, because a search is the same whatever the order on the command line is
        boxes = {key: self.space.parts[key].distribution() for key in sorted(self.space.parts)}
        # from its number, so that a search that was killed goes on as it would have
        self.study.sampler = sampler_of(self.settings["sampler"], self.settings["seed"], number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that infinite values are clipped
            asked = self.study.ask(boxes)
        trial = self.trial(asked.number, asked.params)
        self.trials.append(trial)
        return trial

    def trial(self, number: int, params: dict[str, Any]) -> Trial:
        """A trial with its runs, one for each seed."""
        texts = self.space.texts(params)
        runs = []
        for seed in range(self.base_seed, self.base_seed + self.settings["seeds"]):
            overrides = [*self.space.overrides(texts), f"seed={seed}"]
            words = " ".join(f"{key}={text}" for key, text in texts.items())
            words += f" seed={seed}" if self.settings["seeds"] > 1 else ""
            try:
                config = resolve(self.compose(overrides))
                sweep.share_threads_of(config, self.space.fixed, self.launcher.workers)
                set_labels(config, labels_of(texts), self.folder.name)
                runs.append(sweep.SweepRun(number, words, config, place(config)))
            except BadSetting as error:
                runs.append(sweep.SweepRun(number, words, refused=str(error)))
        study = self.storage.get_study_id_from_name(STUDY)
        id = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        return Trial(number, id, texts, runs, [])

    def make_batch(self, batch: Sequence[Trial]) -> bool:
        """Make the runs of some trials, and tell optuna what became of them.

        The other seeds of a trial follow when the run of its first one is done. optuna is not told
        of a trial with a run that goes on later. Gives whether the search goes on: not if there is
        such a trial, unless its process was killed, for that may come again whenever it is made.
        """
        self.make_runs([(trial, trial.runs[0]) for trial in batch])
        good = [trial for trial in batch if trial.outcomes[0].status in sweep.GOOD]
        self.make_runs([(trial, run) for trial in good for run in trial.runs[1:]])
        goes_on = True
        for trial in batch:
            ends = zip(trial.runs, trial.outcomes)
            left = next((end for run, end in ends if goes_on_later(run, end)), None)
            if left is not None:
                again = f"{left.status}: {left.reason}; the same command goes on with it"
                print(f"bench: {left.words}: {again}", file=sys.stderr)
                goes_on = goes_on and left.status == "lost"
                continue
            said = self.tell(trial)
            print(*self.progress.lines([f"{trial.words}: {said}"]), flush=True)
            self.progress.bar.advance(self.progress.bar.task_ids[0])
        self.write_summary()
        return goes_on

    def make_runs(self, wanted: Sequence[tuple[Trial, sweep.SweepRun]]) -> None:
        """Make runs that are not there, and add the outcomes to their trials."""
        notes = self.folder / "notes"
        jobs: dict[str, Job] = {}  # by the run's name: two trials may have the same
        known: dict[int, sweep.Outcome] = {}
        for k, (trial, run) in enumerate(wanted):
            outcome = sweep.earlier_outcome(run)
            watch = None
            if self.settings["pruner"] != "none" and run is trial.runs[0]:
                watch = Watch(self.journal, trial.id, self.aim.metric, self.pruning)
            if outcome is not None or run.config is None or run.folder is None:
                assert outcome is not None
                known[k] = outcome
                if watch is not None and run.folder is not None:
                    watch(run.folder)  # so that the pruner knows the rows of a run that is there
                continue
            note = notes / f"{trial.number}-{k}.json"
            job = Job(run.config, run.folder, note, since=self.begun, watch=watch)
            jobs.setdefault(run.folder.name, job)
        try:
            if jobs:
                notes.mkdir(parents=True, exist_ok=True)
                self.launcher.launch(list(jobs.values()), self.folder, ignore_end)
        finally:
            for k, (trial, run) in enumerate(wanted):
                outcome = known.get(k) or sweep.outcome_of(run, jobs[run.name or ""])
                trial.outcomes.append(outcome)
            shutil.rmtree(notes, ignore_errors=True)

    def tell(self, trial: Trial) -> str:
        """Tell optuna what became of a trial; gives it in words."""
        from optuna.trial import TrialState

        statuses = {outcome.status for outcome in trial.outcomes}
        reason = next((o.reason for o in trial.outcomes if o.status not in sweep.GOOD), None)
        if "pruned" in statuses:
            self.study.tell(trial.number, state=TrialState.PRUNED)
            row = trial.runs[0].folder
            return f"pruned at step {last_step(row)}" if row else "pruned"
        if statuses - {*sweep.GOOD, "diverged"}:
            self.study.tell(trial.number, state=TrialState.FAIL)
            return f"{', '.join(sorted(statuses))}: {reason}"
        values = [self.value(run) for run, _ in zip(trial.runs, trial.outcomes)]
        self.study.tell(trial.number, statistics.fmean(values))
        if "diverged" in statuses:
            return f"diverged: {reason}"
        return f"{self.aim.metric.replace('_', ' ')} {statistics.fmean(values):.4g}"

    def value(self, run: sweep.SweepRun) -> float:
        """The metric's last value of a run that has ended."""
        summary = run.folder.summary() if run.folder else None
        value = summary["last"].get(self.aim.metric) if summary else None
        done = summary is not None and summary["status"] == "done" and value is not None
        return float(value) if done else self.aim.worst  # type: ignore[arg-type]

    def write_summary(self) -> list[sweep.Outcome]:
        """Write what became of all runs into the folder, for other programs; gives it too."""
        ends = [outcome for trial in self.trials for outcome in trial.outcomes]
        counts = Counter(end.status for end in ends)
        runs = [end._asdict() for end in ends]
        write_json(
            self.folder / SWEEP_SUMMARY,
            {"counts": dict(counts), "code": exit_code(ends), "runs": runs},
        )
        return ends

    def close(self) -> int:
        """Print the best trials and how to make the best one again; gives the exit code."""
        ends = self.write_summary()
        ended = [trial for trial in self.trials if trial.outcomes]
        made = [
            Made({**trial.texts, "seed": str(seed)}, run.folder)
            for trial in ended
            if all(outcome.status in sweep.GOOD for outcome in trial.outcomes)
            for seed, run in enumerate(trial.runs, self.base_seed)
            if run.folder is not None
        ]
        counts = Counter(worst_of(trial) for trial in ended)
        words = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        print(f"{len(ended)} trials: {words}", *remarks(ended), sep="\n")
        print_closing(made, self.folder, SHOWN, (self.aim.metric, self.aim.good))
        runs = [run.folder for trial in ended for run in trial.runs if run.folder is not None]
        tell_offline([folder.path for folder in runs])
        finished = [t for t in self.study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
        if any(math.isfinite(trial.value or 0.0) for trial in finished):
            texts = self.space.texts(self.study.best_trial.params)
            if self.compose.has_own_folder:  # whose file may be that of a search
                print("the best settings:", *(f"{key}={text}" for key, text in texts.items()))
            else:
                print(f"the best again: bench {shlex.join(self.space.overrides(texts))}")
        return exit_code(ends)


def ignore_end(job: Job) -> None:
    """What a launcher reports to: the search looks at all runs of a batch together."""


def goes_on_later(run: sweep.SweepRun, end: sweep.Outcome) -> bool:
    """Whether the same command goes on with a run that was stopped, if only by the machine.

    A full disk or a lack of memory may keep a run from its end, or from going on from a checkpoint.
    Its folder does not say then that the run has failed.
    """
    if end.status in sweep.LATER:
        return True
    if run.folder is None or end.status not in ("failed", "lost", "refused"):
        return False
    if end.status == "refused" and not run.folder.has_checkpoint():
        return False
    return state_of(run.folder).status in ("lost", "missing", *sweep.LATER)


def outcomes_before(trial: Trial) -> list[sweep.Outcome]:
    """What became of the runs of a trial that optuna knows to be over: of the first alone where
    that is not done, as the others were then not made."""
    first, *others = trial.runs
    found = found_before(first)
    return [found, *(found_before(run) for run in others if found.status in sweep.GOOD)]


def found_before(run: sweep.SweepRun) -> sweep.Outcome:
    """What became of a run of a trial that optuna knows to be over."""
    about = (run.number, run.words, run.name)
    if run.config is None or run.folder is None:
        return sweep.Outcome(*about, "refused", run.refused)
    status, reason = run.folder.state()
    if status == "done":
        return sweep.Outcome(*about, "skipped", describe_change(run.config, run.folder))
    if status in sweep.LATER:
        return sweep.Outcome(*about, "pruned", reason)
    return sweep.Outcome(*about, status, reason)


def worst_of(trial: Trial) -> str:
    """What became of a trial, in a word: of the first of its runs that is not done, if any."""
    return next((o.status for o in trial.outcomes if o.status not in sweep.GOOD), "done")


def remarks(trials: Sequence[Trial]) -> list[str]:
    """What the lines of the trials have not said of their runs, each reason once, and what makes
    those again that have no value."""
    told = Counter(
        f"{end.status}: {end.reason}"
        for trial in trials
        for end in trial.outcomes
        if end.reason and (end.status == "skipped" or trial.was_over) and end.status not in FINE
    )
    lines = [f"{count} {words}" for words, count in told.most_common(SHOWN)]
    ends = [end for trial in trials for end in zip(trial.runs, trial.outcomes)]
    if any(end.status == "failed" and not goes_on_later(run, end) for run, end in ends):
        lines.append("run.retry_failed=true tries failed ones again")
    if any(trial.was_over and worst_of(trial) in ("missing", "lost") for trial in trials):
        gone = "not all runs of the search are there any more"
        lines.append(f"{gone}; run.force=true starts the search again")
    return lines


def last_step(folder: RunFolder) -> int:
    """The step at which a run stopped."""
    return int(folder.status_note().get("step", 0))


def exit_code(ends: Sequence[sweep.Outcome]) -> int:
    """The exit code of a search, by its trials that are not FINE, unless all diverge."""
    there = [end for end in ends if end.status not in FINE]
    if not there and any(end.status == "diverged" for end in ends):
        return exit_codes.FAILED  # all of them did
    return sweep.exit_code_of_sweep(there)


def sampler_of(kind: Sampler, seed: int, number: int) -> "BaseSampler":
    """optuna's sampler for one trial of a search."""
    from optuna import samplers

    own = (seed * 1_000_003 + number) % 2**31
    return samplers.RandomSampler(own) if kind == "random" else samplers.TPESampler(seed=own)
