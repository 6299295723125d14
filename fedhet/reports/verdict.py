"""What a report opens with: at most five sentences, each made from the numbers by one rule.

Nothing is called better or worse unless the 95 % interval of its paired difference (Student's t
over blocks) lies on one side of zero, and nothing is called best at all. Of settings that differ in
rounds alone only the longest counts, since the shorter ones are its first rounds; a setting of one
block has no interval and is in no count. What cannot be said is the last sentence.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from fedhet.reports.comparison import Comparison, longest
from fedhet.reports.names import method_name
from fedhet.reports.statistics import ENOUGH, LEVEL

_NAMED = 3  # methods of which a sentence says where most; titles that it lists
_AGAINST = "lg_fedavg"  # the traffic of one header each way, which costs are held against


@dataclass(frozen=True)
class Gain:
    """A method beside the baseline in one setting, in points."""

    method: str
    setting: str
    points: float
    sign: int  # 1 or -1 where the interval excludes zero
    traffic: float | None = None  # times LG-FedAvg's there


def sentences(comparisons: Sequence[Comparison], runs: int) -> list[str]:
    """The verdict, at most five sentences; without a baseline fewer."""
    counted = longest(comparisons)
    found = gains(counted)
    base = _base(comparisons)
    counts = [len(arm.runs) for one in comparisons for arm in one.arms]
    methods = {arm.method for one in comparisons for arm in one.arms}
    shorter = [
        int(str(one.setting.keys["rounds"])) for one in comparisons if one not in counted
    ]  # fmt: skip
    made = [extent(runs, len(methods), len(comparisons), counts, shorter)]
    if base:
        made += [winners(found, base), losers(found, base), traffic(found)]
    made.append(unsaid(counted, len(found), base))
    return [sentence for sentence in made if sentence]


def brief(comparisons: Sequence[Comparison]) -> tuple[list[str], str]:
    """At most three lines to be read in seconds, and how to read them; both may be empty."""
    counted = longest(comparisons)
    found = gains(counted)
    base = _base(comparisons)
    if not found:
        return [], ""
    sent = _traffics(found)
    lines = [f"Above {_told(base)}: {_listed(1, found, where=False) or 'nobody'}."]
    rest = _below(found, base, "", where=False)
    if rest:
        lines.append(rest)
    if sent:
        lines.append(f"Traffic a round of those above, {method_name(_AGAINST)} = 1: {sent}.")
    if _several(found):
        note = (
            f"Counted are the settings, of those where the method was run, in which the {_LEVEL} "
            "interval of the paired difference excludes zero; in brackets the largest such "
            "difference, in points of test accuracy."
        )
    else:
        note = (
            f"Numbers are differences in points of test accuracy whose {_LEVEL} interval excludes "
            "zero."
        )
    single = [one.setting.title for one in counted if _single(one)]
    if single:
        note += (
            " Not counted, since one block (partition and seed) has no interval: "
            f"{_some(single, 'and')}."
        )
    if sent and _several(found):
        note += " Traffic: median over settings."
    return lines, note


def _base(comparisons: Sequence[Comparison]) -> str:
    return next((one.baseline.name for one in comparisons if one.baseline is not None), "")


def _told(base: str) -> str:
    """The baseline as it is first named."""
    return f"{base} (each client alone)" if base == method_name("standalone") else base


def _single(one: Comparison) -> bool:
    return len(one.setting.blocks()) < 2


def gains(comparisons: Sequence[Comparison]) -> list[Gain]:
    """Every method beside the baseline in every setting that has both in two blocks or more."""
    made = []
    for one in comparisons:
        floats = {
            arm.method: cost.floats_up + cost.floats_down
            for arm, cost in zip(one.arms, one.costs, strict=True)
            if not arm.keys
        }
        against = floats.get(_AGAINST)
        for name, place in one.shown.items():
            pair, cost = one.paired[place], one.costs[place]
            if pair is None or pair.interval.half is None:
                continue
            own = cost.floats_up + cost.floats_down
            times = own / against if against else None
            made.append(Gain(name, one.setting.title, pair.interval.mean, pair.sign, times))
    return made


def extent(
    runs: int, methods: int, settings: int, blocks: Collection[int], shorter: Sequence[int] = ()
) -> str:
    """How much was run; ``shorter`` are the rounds of settings that begin a longer one."""
    low, high = min(blocks), max(blocks)
    span = f"{low} to {_many(high, 'block')}" if low < high else _many(high, "block")
    apart = ""
    if shorter:
        rounds = ", ".join(str(number) for number in sorted(set(shorter)))
        are, of = (
            ("is", "of a longer one and is") if len(shorter) == 1
            else ("are", "of longer ones and are")
        )  # fmt: skip
        apart = (
            f"; {_many(len(shorter), 'setting')} (T = {rounds}) {are} the first rounds {of} "
            "not counted below"
        )
    return (
        f"{_many(runs, 'run')} of {_many(methods, 'method')} in {_many(settings, 'setting')}, "
        f"{span} (partition and seed) a method{apart}."
    )


def winners(found: Sequence[Gain], base: str) -> str:
    """Who is above the baseline, by how much at most, where, and in how many settings."""
    if not found:
        return ""
    if not any(gain.sign > 0 for gain in found):
        return f"No method is above {base} with a {_LEVEL} interval that excludes zero."
    without = [
        setting for setting in dict.fromkeys(gain.setting for gain in found)
        if all(gain.sign <= 0 for gain in found if gain.setting == setting)
    ]  # fmt: skip
    nobody = f"; nobody in {_some(without, 'or')}" if without else ""
    reading = " (in brackets the largest difference, in points)" if _several(found) else ""
    return (
        f"Above {_told(base)}, with a {_LEVEL} interval that excludes zero{reading}: "
        f"{_listed(1, found)}{nobody}."
    )


def losers(found: Sequence[Gain], base: str) -> str:
    """Who is below it, and who is neither above nor below anywhere."""
    return _below(found, base, ", likewise")


def _below(found: Sequence[Gain], base: str, likewise: str, *, where: bool = True) -> str:
    told = {gain.method for gain in found if gain.sign}
    same = sorted({gain.method for gain in found} - told, key=str.casefold)
    below, neither = _listed(-1, found, where=where), ", ".join(same)
    if not below:
        return f"Not told from {base} anywhere: {neither}." if same else ""
    rest = f"; not told from it anywhere: {neither}" if same else ""
    return f"Below {base}{likewise}: {below}{rest}."


def traffic(found: Sequence[Gain]) -> str:
    """What those above the baseline send, against LG-FedAvg's header; medians over settings."""
    sent = _traffics(found)
    over = " (median over settings)" if _several(found) else ""
    return (
        f"Traffic a round of those above, {method_name(_AGAINST)}'s = 1{over}: {sent}."
        if sent
        else ""
    )


def _traffics(found: Sequence[Gain]) -> str:
    above = {gain.method for gain in found if gain.sign > 0}
    of: dict[str, list[float]] = {}
    for gain in found:
        if gain.method in above and gain.traffic is not None:
            of.setdefault(gain.method, []).append(gain.traffic)
    costs = sorted((median(times), method) for method, times in of.items())
    return ", ".join(f"{method} {_times(times)}" for times, method in costs)


def unsaid(comparisons: Sequence[Comparison], compared: int, base: str) -> str:
    """What the records cannot say."""
    single = [one.setting.title for one in comparisons if _single(one)]
    few = [one for one in comparisons if len(one.setting.blocks()) < ENOUGH]
    mixed = [
        one.setting.title for one in comparisons
        if len({arm.precision for arm in one.arms}) > 1
    ]  # fmt: skip
    made = []
    if not base:
        made.append("who gains is not known, since the baseline was not run")
    if single:
        has = "has" if len(single) == 1 else "have"
        made.append(f"{_some(single, 'and')} {has} one block and so no interval")
    if len(few) > len(single):
        made.append(
            f"{_having(few, comparisons)} fewer than {ENOUGH} blocks, too few for a rank test"
        )
    if mixed:
        made.append(
            f"small differences in {_some(mixed, 'and')} may come from precision, which differs"
        )
    luck = round((1 - LEVEL) * compared)
    if luck:
        made.append(f"about {luck} of the {compared} intervals would exclude zero by chance alone")
    return f"Limits: {'; '.join(made)}." if made else ""


_LEVEL = f"{100 * LEVEL:g} %"


def _listed(sign: int, found: Sequence[Gain], *, where: bool = True) -> str:
    """``FD in 3 of 5 settings (+4.3; most in A), FML in 1 of 4 (+9.0; in A)``.

    In the order of how many settings it is: the largest difference of all may be of one alone.
    """
    of: dict[str, list[Gain]] = {}
    for gain in found:
        if gain.sign == sign:
            of.setdefault(gain.method, []).append(gain)
    most = {
        name: max(own, key=lambda gain: (abs(gain.points), gain.setting))
        for name, own in of.items()
    }
    said = []
    order = sorted(of, key=lambda name: (-len(of[name]), -abs(most[name].points), name))
    for place, name in enumerate(order):
        points = _points(most[name].points)
        if not _several(found):
            said.append(f"{name} {points}")
            continue
        own = [gain for gain in found if gain.method == name]
        other = sum(gain.sign == -sign for gain in own)
        notes = [points]
        if where and place < _NAMED:
            notes.append(f"{'most ' if len(of[name]) > 1 else ''}in {most[name].setting}")
        if other:
            notes.append(f"{'below' if sign > 0 else 'above'} in {other}")
        settings = "" if place else " settings"
        said.append(f"{name} in {len(of[name])} of {len(own)}{settings} ({'; '.join(notes)})")
    return ", ".join(said)


def _several(found: Sequence[Gain]) -> bool:
    return len({gain.setting for gain in found}) > 1


def _some(names: Sequence[str], word: str) -> str:
    """``A``, ``A or B``, ``A; B or C``: titles have commas."""
    if len(names) > _NAMED:
        return f"{len(names)} of the settings"
    return f" {word} ".join(filter(None, ["; ".join(names[:-1]), names[-1]]))


def _points(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _times(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _many(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def _having(some: Sequence[object], of: Sequence[object]) -> str:
    if len(of) == 1:
        return "there are"
    if len(some) == len(of):
        return "all settings have"
    return f"{len(some)} of {len(of)} settings {'has' if len(some) == 1 else 'have'}"
