"""The command line `bench`: Hydra composes a configuration, and bench.runs.launch runs it.

Slow modules are imported only when there is something to run, so that --help is quick.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from errno import ENOSPC
from importlib.resources import files
from io import StringIO
from textwrap import fill
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bench import about, guard
from bench.core.packages import listed
from bench.runs.exit_codes import FAILED, INTERRUPTED, PUT_OFF, REFUSED
from bench.runs.importing import import_torch
from bench.runs.waiting import settle_waiting
from bench.search_path import find_clash, keep_children_out

settle_waiting()

HOW_TO_COMPLETE = (
    '--shell-completion: write eval "$(bench --shell-completion install=bash)" for bash and zsh, '
    "bench --shell-completion install=fish | source for fish; uninstall= undoes it"
)

CHOSEN = ("task", "algorithm")  # the groups of which a run has one choice each

# Hydra does not hand on what `app` returns or raises, so both are kept here for `main`.
run_codes: list[int] = []  # the exit code of the run or the sweep
run_errors: list[Exception] = []


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
def app(cfg: DictConfig) -> None:
    """Make one run. A sweep is made by hydra_plugins/bilevel_bench.py instead."""
    import_torch()
    from bench.runs.launch import launch

    try:
        run_codes.append(launch(cfg))
    except Exception as error:
        run_errors.append(error)


def main() -> None:
    """The console script `bench`: ends the process with one of bench.runs.exit_codes."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra shall raise its errors: `explain` words them
    arguments = sys.argv[1:]
    if "--version" in arguments:  # Hydra would print its own version
        print(about.version_line())
        return
    keep_children_out()
    if clash := find_clash():
        refuse(clash)
        sys.exit(REFUSED)
    for line in listed().left_out:
        refuse(line)
    if any(
        a[:3] == "--e" and "--experimental-rerun".startswith(a.partition("=")[0]) for a in arguments
    ):
        refuse(
            "--experimental-rerun: reads a pickle, which could run anything; give the command again"
        )
        sys.exit(REFUSED)
    if wrong := no_setting(arguments) or no_option(arguments):
        refuse(wrong)
        sys.exit(REFUSED)
    guard.install()
    try:
        with shorter_help({"--help", "-h"} & set(arguments) != set()):
            app()
        if run_errors:
            raise run_errors.pop()
    except (HydraException, OmegaConfBaseException) as error:
        refuse(explain(error, [a for a in arguments if not a.startswith("-")]))
        run_codes.append(REFUSED)
    except KeyboardInterrupt:
        run_codes.append(INTERRUPTED)
    except Exception as error:
        if any(map(is_completion, arguments)) and isinstance(error, ValueError | KeyError):
            refuse(HOW_TO_COMPLETE)
            run_codes.append(REFUSED)
        else:
            run_codes.append(report_error(error))
    except BaseException as error:
        if type(error).__name__ != "Preempted":  # by name, as its module is slow to import
            raise
        run_codes.append(PUT_OFF)
    sys.exit(max(run_codes, default=0))


def no_setting(arguments: list[str]) -> str | None:
    """Why an argument that would change the space that the league searches is refused."""
    for argument in arguments:
        words = argument.lstrip("+~").partition("=")[0].split(".")
        if words[:2] == ["algorithm", "tuning"]:
            name = (words[2:] or ["SETTING"])[0]
            return f"{argument}: what the league searches, no setting; write algorithm.{name}=VALUE"
    return None


def no_option(arguments: list[str]) -> str | None:
    """What is wrong with the first option that Hydra does not have or cannot read, with a word that
    is neither an option nor a setting, or with two options that do not go together."""
    parser = get_args_parser()
    parser.error = complain  # type: ignore[method-assign]  # it would print how all are used
    try:
        given, unknown = parser.parse_known_args(arguments)
    except ValueError as error:
        return f"{error} (bench --help)"
    if given.overrides[:1] == ["reproduce"]:
        return "reproduce: is a command of its own; write for example reproduce list"
    for option in unknown:
        name, equals, value = option.lstrip("-").partition("=")
        if option.startswith("--") and name:
            setting = f"{name}={value if equals else 'VALUE'}"
            return f"{option}: no such option; a setting has no dashes: {setting} (bench --help)"
        if option.startswith("-"):
            return f"{option}: no such option; bench --help lists those that there are"
    if unknown:
        return f"{unknown[0]}: options come first; write bench -m task=... {unknown[0]}"
    bare = [word for word in given.overrides if not re.search(r"=|^~", word)]
    if bare:
        return f"{bare[0]}: no setting; a setting is NAME=VALUE; {instead_of(bare[0])}"
    modes = [f"--{mode}" for mode in ("run", "multirun", "cfg", "info") if getattr(given, mode)]
    if given.resolve and "--cfg" not in modes:
        return "--resolve: goes with --cfg; write for example --cfg job --resolve"
    return f"{' and '.join(modes)}: give one of them" if len(modes) > 1 else None


def instead_of(word: str) -> str:
    """What to write instead of a word that stands where a setting should."""
    groups = [group for group in CHOSEN if is_choice(group, word)]
    return f"write {groups[0]}={word}" if groups else "bench --help lists what there is"


def for_each(group: str, value: str) -> str:
    """What else to write, where the value of a group is a list: a run of each of its choices."""
    several = re.fullmatch(r"\[(.+)\]", value)
    return f", or -m {group}={several[1]} for a run of each" if several else ""


def is_choice(group: str, word: str) -> bool:
    """Whether a group of the configuration, in this package, has a choice of this name."""
    return word.isidentifier() and (files("conf") / group / f"{word}.yaml").is_file()


def complain(message: str) -> NoReturn:
    """Raise ValueError with what argparse says of an option."""
    raise ValueError(message)


@contextmanager
def shorter_help(asked: bool) -> Iterator[None]:
    """A context in which Hydra's help, if it is asked for, is printed in lines of 80 characters.

    Hydra lists every group of conf/. Those that nobody chooses by their names are left out: the
    specs of the command `reproduce`, the rules of the league, the settings that come with a pair of
    task and algorithm, and the rules of descent, which are chosen for a place in a method. So is
    the space that the league searches, which a method's yaml has beside its settings.
    """
    if not asked:
        yield
        return
    text = StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        others = r"^(descent|league|paper|tuned)(/\w+)*: .*\n"
        choices = re.sub(others, "", text.getvalue(), flags=re.M)
        choices = re.sub(r"^  tuning:\n(    .*\n)*", "", choices, flags=re.M)  # no setting
        print(re.sub(r"^[\w/]+: .{70,}$", wrapped, choices, flags=re.M), end="")


def wrapped(line: re.Match[str]) -> str:
    """A long line of names in several."""
    return fill(line[0], 80, subsequent_indent="  ", break_long_words=False)


def is_completion(argument: str) -> bool:
    """Whether an argument is Hydra's option --shell-completion, which may be shortened."""
    long = argument[:4] == "--sh" and "--shell-completion".startswith(argument)
    return long or argument == "-sc"


def report_error(error: Exception) -> int:
    """Print an error that one line explains, and give its exit code; raise every other error."""
    from bench.core.settings import BadSetting
    from bench.runs.lock import Busy

    if isinstance(error, BadSetting):
        refuse(str(error))
        return PUT_OFF if isinstance(error, Busy) else REFUSED
    if isinstance(error, OSError) and (error.filename is not None or error.errno == ENOSPC):
        file = error.filename or "a file"  # which an error of a file that is open does not name
        refuse(f"cannot read or write {file}: {error.strerror}; the same command goes on")
        return FAILED
    if type(error).__name__ == "OutOfMemoryError":  # by name, as torch is slow to import
        line = str(error).partition(". ")[0]
        refuse(
            f"the GPU has too little memory left: {line}; the same command goes on, or write "
            "run.device=cpu"
        )
        return FAILED
    raise error


def refuse(line: str) -> None:
    """Print why something is not done, on standard error."""
    print(f"bench: {line}", file=sys.stderr)


def explain(error: Exception, overrides: list[str]) -> str:
    """An error of composition as one line: the setting, its value, and what to write instead."""
    from bench.core.settings import BadSetting

    text = " ".join((str(error) or str(error.__cause__)).split())
    for override in overrides:  # of these Hydra says that an interpolation or a file is missing
        group, _, value = override.lstrip("+~").partition("=")
        if group in CHOSEN and (override.startswith("~") or value.startswith("[")):
            return f"{override}: a run has one {group}; write {group}=NAME{for_each(group, value)}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        if not error.options:  # it is no choice of a group
            name = error.missing_cfg_file
            return f"--config-name={name}: no such configuration; leave it out, or write config"
        for key, _, value in (override.partition("=") for override in overrides):
            if f"{key}/{value}" == str(error.missing_cfg_file):  # the choice is itself a path
                group, choice = key, value
        return f"{group}={choice}: no such {group}; there is {', '.join(error.options or [])}"
    known = text.startswith(("Error parsing override", "LexerNoViableAltException: "))
    if isinstance(error, OverrideParseException) and not known:
        what = re.sub(r" See https?://\S+.*", "", text)
        return f"{error.override}: {what}; write setting=VALUE, an odd value in quotes"
    if text.startswith("Ambiguous value for argument "):
        argument = text.removeprefix("Ambiguous value for argument '").partition("'")[0]
        key, _, value = argument.partition("=")
        a_list = "" if key in CHOSEN else f", or write {key}=[{value}] for a list"
        return f"{argument}: put -m before it for a run of each{a_list}"
    if "Config group override must be" in text:
        choices = [o for o in overrides if "." not in o.partition("=")[0] and o[:5] != "seed="]
        return f"{' '.join(choices)}: {text.partition(': ')[2]}"
    if text.startswith("LexerNoViableAltException: "):
        where = text.removeprefix("LexerNoViableAltException: ").removesuffix(" ^")
        return f"{where}: a character that cannot stand there; put the value in quotes"
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match[1].lstrip("+~")
        value = next((o.partition("=")[2] for o in overrides if o.startswith(f"{key}=")), "")
        others = [o for o in overrides if o.partition("=")[0].lstrip("+~") != key]
        from bench.sweeps.composing import check_is_there, check_place

        parsed = OverridesParser.create().parse_overrides(others)
        own = [o.input_line or "" for o in parsed if not o.is_sweep_override()]
        groups = [o for o in own if "." not in o.partition("=")[0]]
        of_sweep = key.startswith(("hydra.launcher.", "hydra.sweeper."))
        check = check_place if of_sweep else check_is_there
        for rest in (own, groups):  # another of the settings may be wrong, too
            try:
                with hydra.initialize_config_module("conf", version_base="1.3"):
                    check(hydra.compose("config", rest, return_hydra_config=of_sweep), key, value)
            except (HydraException, OmegaConfBaseException):
                pass  # Hydra's own words stay
            except BadSetting as refusal:
                return str(refusal)
    return re.sub(r" See https?://\S+.*", "", text)
