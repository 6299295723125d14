"""What a report opens with: at most five sentences, each made from the numbers by one rule.

Nothing is called better or worse unless the 95 % interval of its paired difference (Student's t
over blocks) lies on one side of zero, and nothing is called best at all. Of settings that differ in
rounds alone only the longest counts, since the shorter ones are its beginning. What cannot be said
is the last sentence.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from fedhet.reports.comparison import Comparison, longest
from fedhet.reports.names import method_name
from fedhet.reports.statistics import ENOUGH, LEVEL

_NAMED = 3  # methods of which a sentence says by how much, and where most
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
    base = next((one.baseline.name for one in comparisons if one.baseline is not None), "")
    counts = [len(arm.runs) for one in comparisons for arm in one.arms]
    methods = {arm.method for one in comparisons for arm in one.arms}
    made = [extent(runs, len(methods), (len(comparisons), len(counted)), counts)]
    if base:
        made += [winners(found, base), losers(found, base), traffic(found)]
    made.append(unsaid(counted, len(found), base))
    return [sentence for sentence in made if sentence]


def gains(comparisons: Sequence[Comparison]) -> list[Gain]:
    """Every method beside the baseline in every setting that has both."""
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
            if pair is None:
                continue
            own = cost.floats_up + cost.floats_down
            times = own / against if against else None
            made.append(Gain(name, one.setting.title, pair.interval.mean, pair.sign, times))
    return made


def extent(runs: int, methods: int, settings: tuple[int, int], blocks: Collection[int]) -> str:
    """How much was run; of ``settings`` all, and those that count."""
    low, high = min(blocks), max(blocks)
    span = f"{low} to {_many(high, 'block')}" if low < high else _many(high, "block")
    shorter = settings[0] - settings[1]
    apart = (
        f"; {shorter} of the settings begin as longer ones do and do not count" if shorter else ""
    )
    return (
        f"{_many(runs, 'run')} of {_many(methods, 'method')} in {_many(settings[0], 'setting')}, "
        f"{span} (partition and seed) a method{apart}."
    )


def winners(found: Sequence[Gain], base: str) -> str:
    """Who is above the baseline, in how many settings, by how much and where most."""
    if not found:
        return ""
    above = [gain for gain in found if gain.sign > 0]
    if not above:
        return f"No method is above {base} with a {_LEVEL} interval that excludes zero."
    without = [
        setting for setting in dict.fromkeys(gain.setting for gain in found)
        if all(gain.sign <= 0 for gain in found if gain.setting == setting)
    ]  # fmt: skip
    nobody = f"; nobody in {_either(without)}" if without else ""
    return (
        f"Above {base}, with a {_LEVEL} interval that excludes zero: "
        f"{_listed(above, found)}{nobody}."
    )


def losers(found: Sequence[Gain], base: str) -> str:
    """Who is below it."""
    below = [gain for gain in found if gain.sign < 0]
    return f"Below {base}, likewise: {_listed(below, found)}." if below else ""


def traffic(found: Sequence[Gain]) -> str:
    """What those above the baseline send, against LG-FedAvg's header; medians over settings."""
    above = {gain.method for gain in found if gain.sign > 0}
    of: dict[str, list[float]] = {}
    for gain in found:
        if gain.method in above and gain.traffic is not None:
            of.setdefault(gain.method, []).append(gain.traffic)
    costs = sorted((median(times), method) for method, times in of.items())
    if not costs:
        return ""
    said = ", ".join(f"{method} {_times(times)}" for times, method in costs)
    return f"Their traffic, {method_name(_AGAINST)}'s = 1: {said}."


def unsaid(comparisons: Sequence[Comparison], compared: int, base: str) -> str:
    """What the records cannot say."""
    single = [one for one in comparisons if len(one.setting.blocks()) < 2]
    few = [one for one in comparisons if len(one.setting.blocks()) < ENOUGH]
    mixed = [
        one.setting.title for one in comparisons
        if len({arm.precision for arm in one.arms}) > 1
    ]  # fmt: skip
    made = []
    if not base:
        made.append("who gains at all, since the baseline was not run")
    if single:
        made.append(f"anything sure of {_count_of(single, comparisons)}: one block has no interval")
    if len(few) > len(single):
        made.append(
            f"a rank test's answer in {_count_of(few, comparisons)}: fewer than {ENOUGH} blocks"
        )
    if mixed:
        made.append(f"small differences in {' and '.join(mixed)}: methods differ in precision")
    chance = round((1 - LEVEL) * compared)
    if chance:
        made.append(
            f"which are luck: of {compared} intervals one in twenty excludes zero by chance alone"
        )
    return f"What cannot be said: {'; '.join(made)}." if made else ""


_LEVEL = f"{100 * LEVEL:g} %"


def _listed(chosen: Sequence[Gain], found: Sequence[Gain]) -> str:
    """``FD in 3 of 5 settings (up to +4.3 in ...)``: most settings first, then the largest."""
    of: dict[str, list[Gain]] = {}
    for gain in chosen:
        of.setdefault(gain.method, []).append(gain)
    order = sorted(
        of, key=lambda name: (-len(of[name]), -max(abs(g.points) for g in of[name]), name)
    )
    said = []
    for place, name in enumerate(order):
        total = sum(gain.method == name for gain in found)
        most = max(of[name], key=lambda gain: (abs(gain.points), gain.setting))
        where = ""
        if place < _NAMED:
            up_to = "up to " if len(of[name]) > 1 else ""
            where = f" ({up_to}{_points(most.points)} in {most.setting})"
        settings = " settings" if place == 0 else ""
        if len({gain.setting for gain in found}) == 1:
            said.append(f"{name} {_points(most.points)}")
        else:
            said.append(f"{name} in {len(of[name])} of {total}{settings}{where}")
    return ", ".join(said)


def _either(names: Sequence[str]) -> str:
    """``A``, ``A or B``, ``A; B or C``: titles have commas."""
    if len(names) > _NAMED:
        return f"{len(names)} of the settings"
    return " or ".join(filter(None, ["; ".join(names[:-1]), names[-1]]))


def _points(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _times(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _many(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def _count_of(some: Sequence[object], of: Sequence[object]) -> str:
    return "all settings" if len(some) == len(of) else f"{len(some)} of {len(of)} settings"
