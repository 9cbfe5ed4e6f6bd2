"""The command `decide sweep`: lists what is left of a destroyed environment, and deletes it once that is confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError

from ops.aws import Aws, connect
from ops.deployed import artifacts_name, endpoints_name, find_stack, resources
from ops.errors import FAILED, FailedError, UsageError, aws_sentence
from ops.options import EndpointUrl, EnvironmentName, Json, environment
from ops.output import note, say, show_json, show_table, typed
from ops.sweep.kinds import KINDS, Thing
from stacks.config import Environment

_KEPT = "an environment that is not removable keeps its data"

Delete = Annotated[bool, typer.Option("--delete", help="Delete what is left, after a confirmation.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --delete: do not ask. What is deleted is printed all the same.")]
Also = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="NAME", help="With --delete: this one too, which is kept on purpose; repeatable."),
]


@dataclass(frozen=True)
class Left:
    """What an environment has in the account without a stack that would have it."""

    things: tuple[Thing, ...]
    # Kinds that AWS did not list, and its words.
    unseen: tuple[tuple[str, str], ...]

    @property
    def leftovers(self) -> tuple[Thing, ...]:
        """What nobody keeps on purpose."""
        return tuple(thing for thing in self.things if not thing.kept)

    @property
    def kept(self) -> tuple[Thing, ...]:
        """What is there on purpose."""
        return tuple(thing for thing in self.things if thing.kept)


@dataclass(frozen=True)
class Outcome:
    """What became of a thing that was to be deleted; `error` is AWS's code and words, empty where it is gone."""

    thing: Thing
    error: str = ""


def sweep(
    env: EnvironmentName,
    *,
    delete: Delete = False,
    yes: Yes = False,
    also: Also = None,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """What a destroyed environment left behind in the account and region; with --delete, its removal.

    A thing is the environment's by its tags or by its stacks' names, never by a part of them. What is kept on purpose,
    such as bucket, repository and key of prod, is listed as kept and deleted only where --also names it. While the
    environment is deployed nothing is. Exit status 1 where something is left, or could not be looked at.

    Example: decide sweep dev --delete
    """
    of = environment(env)
    if also and not delete:
        raise UsageError("--also says what else --delete is to delete: add --delete")
    aws = connect(of, endpoint_url)
    left = look(of, aws)
    chosen = _chosen(left, also or [])
    if not as_json:
        _show(of, aws, left, chosen if delete else ())
    outcomes: list[Outcome] = []
    if delete and chosen:
        _confirm(of, chosen, yes=yes)
        # Somebody may have deployed it while the question stood.
        refuse_if_deployed(of, aws)
        outcomes = remove(chosen, aws)
    if as_json:
        show_json(_json(of, aws, left, outcomes))
    elif outcomes:
        say()
        for outcome in outcomes:
            say(_result(outcome))
    remaining = [o for o in outcomes if o.error] if delete else left.leftovers
    if remaining or left.unseen:
        raise typer.Exit(FAILED)


def look(of: Environment, aws: Aws) -> Left:
    """What is there of the environment. Raises FailedError while it is deployed, and botocore's errors."""
    owned = refuse_if_deployed(of, aws)
    things: list[Thing] = []
    unseen: list[tuple[str, str]] = []
    for kind in KINDS:
        try:
            for thing in kind.things(of, aws):
                if _is_owned(thing, owned):
                    things.append(replace(thing, kept=f"its stack {artifacts_name(of)} still exists"))
                elif kind.holds_data and not of.removable and not thing.kept:
                    things.append(replace(thing, kept=_KEPT))
                else:
                    things.append(thing)
        except ClientError as error:
            unseen.append((kind.name, aws_sentence(error)))
    return Left(tuple(things), tuple(unseen))


def refuse_if_deployed(of: Environment, aws: Aws) -> frozenset[str]:
    """Raise FailedError while the environment's stacks exist; returns the physical ids of what may stay.

    The artifacts' stack of an environment that is not removable is protected, and stays when the endpoints' stack is
    destroyed.
    """
    cloudformation = aws.client("cloudformation")
    for name in (endpoints_name(of), artifacts_name(of)):
        stack = find_stack(cloudformation, name)
        if stack is None:
            continue
        if name == artifacts_name(of) and not of.removable:
            return frozenset(resource.physical_id for resource in resources(cloudformation, name))
        raise FailedError(
            f"environment {of.name!r} is still deployed in {aws.region} (stack {name} is {stack.status}), and nothing "
            f"of a stack is a leftover: destroy it first: make destroy ENV={of.name}"
        )
    return frozenset()


def _is_owned(thing: Thing, owned: frozenset[str]) -> bool:
    # A key's physical id is its id, its name here the ARN.
    return thing.name in owned or thing.name.rpartition("/")[2] in owned


def _chosen(left: Left, also: Sequence[str]) -> tuple[Thing, ...]:
    """What to delete, in the order of its kinds. Raises UsageError for a name in `also` that nothing kept has."""
    by_name = {thing.name: thing for thing in left.kept}
    for name in also:
        if name not in by_name:
            known = ", ".join(by_name) or "nothing"
            raise UsageError(f"--also names {name!r}, which is not kept on purpose; what is: {known}")
        if by_name[name].kept != _KEPT:
            raise UsageError(f"--also names {name!r}, which is not to be deleted here: {by_name[name].kept}")
    return tuple(thing for thing in left.things if not thing.kept or thing.name in also)


def _confirm(of: Environment, chosen: Sequence[Thing], *, yes: bool) -> None:
    """Raise UsageError where nobody confirms."""
    if yes:
        return
    answer = typed(f"This deletes these {len(chosen)} for ever. Type the environment's name to go on:")
    if answer is None:
        raise UsageError("nothing was deleted: there is no terminal to confirm it at; add --yes to confirm it")
    if answer != of.name:
        raise UsageError(f"nothing was deleted: {answer!r} was typed, not {of.name!r}")


def remove(chosen: Sequence[Thing], aws: Aws) -> list[Outcome]:
    """Delete each, in the order given; what cannot be deleted stops none of the others."""
    kinds = {kind.name: kind for kind in KINDS}
    outcomes = []
    for thing in chosen:
        kind = kinds[thing.kind]
        try:
            kind.delete(aws.client(kind.service), thing.name)
        except (BotoCoreError, ClientError) as error:
            outcomes.append(Outcome(thing, aws_sentence(error)))
        else:
            outcomes.append(Outcome(thing))
    return outcomes


def _result(outcome: Outcome) -> str:
    what = f"{outcome.thing.kind} {outcome.thing.name}"
    return f"failed   {what}: {outcome.error}" if outcome.error else f"deleted  {what}"


def _show(of: Environment, aws: Aws, left: Left, chosen: Sequence[Thing]) -> None:
    where = f"environment {of.name!r} in {aws.region}"
    if left.leftovers:
        say(f"Left behind by {where}:")
        say()
        show_table(("kind", "name", "lost with it"), [(t.kind, t.name, t.lost) for t in left.leftovers])
    else:
        say(f"Nothing is left behind by {where}" + (", as far as could be seen." if left.unseen else "."))
    if left.kept:
        say()
        say("Kept on purpose:")
        say()
        show_table(("kind", "name", "holds", "why"), [(t.kind, t.name, t.lost, t.kept) for t in left.kept])
    if named := [thing for thing in chosen if thing.kept]:
        say()
        say("To be deleted all the same, as --also names it: " + ", ".join(f"{t.kind} {t.name}" for t in named))
    for kind, sentence in left.unseen:
        note(f"Not looked at: {kind}: {sentence}")


def _json(of: Environment, aws: Aws, left: Left, outcomes: Sequence[Outcome]) -> Any:
    return {
        "environment": of.name,
        "region": aws.region,
        "leftovers": [asdict(thing) for thing in left.leftovers],
        "kept": [asdict(thing) for thing in left.kept],
        "not_looked_at": [{"kind": kind, "error": sentence} for kind, sentence in left.unseen],
        "deleted": [asdict(outcome.thing) for outcome in outcomes if not outcome.error],
        "failed": [{**asdict(outcome.thing), "error": outcome.error} for outcome in outcomes if outcome.error],
    }
