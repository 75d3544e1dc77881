"""Minimum-weight perfect matching in a complete graph (Edmonds 1965; dense primal-dual form, O(n^3)).

Problem. Pair up n vertices (n even) so that the sum of the pairs' weights is least.

Approach. Minimising w is the same as maximising big - w, which is positive for every pair, so a matching of
greatest weight is perfect. Every vertex has a dual variable y_v and every blossom (an odd cycle that is
shrunk to one vertex) one z_B >= 0:

    slack(u, v) = y_u + y_v - 2 (big - w(u, v)) >= 0

Trees of alternating edges of slack 0 grow from the unmatched vertices. An edge of slack 0 between two trees
augments the matching; within one tree it closes a blossom. When no such edge is left, the duals of outer vertices
fall and those of inner vertices rise by the largest step that keeps all slacks, which makes at least one more edge
tight or lets an inner blossom of z = 0 open. Weights are integers, so "slack 0" is exact.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

RESOLUTION: Final = 10**9
"""Weights are rounded to this share of the greatest one."""
_FREE, _OUTER, _INNER = -1, 0, 1


def minimum_weight_pairs(weights: Sequence[Sequence[float]]) -> tuple[tuple[int, int], ...]:
    """The pairs (i, j), i < j, of the perfect matching of least weight in a symmetric matrix of finite weights."""
    n = len(weights)
    if n % 2 or any(len(row) != n for row in weights):
        raise ValueError(
            f"a perfect matching needs an even number of vertices and a square matrix; the matrix has {n} rows with "
            f"{sorted({len(row) for row in weights})} columns"
        )
    if not n:
        return ()
    largest = max(abs(weights[i][j]) for i in range(n) for j in range(n) if i != j)
    if not math.isfinite(largest):
        raise ValueError("every weight must be finite")
    unit = RESOLUTION / largest if largest > 0 else 1.0
    whole = [[round(weights[i][j] * unit) for j in range(n)] for i in range(n)]
    big = (n + 1) * 2 * (RESOLUTION + 1)
    search = _Search([[0 if i == j else big - whole[i][j] for j in range(n)] for i in range(n)])
    mates = search.mates()
    return tuple((i, mate) for i, mate in enumerate(mates) if i < mate)


class _Search:
    """One search for a matching of greatest weight. Vertices are 1..n, blossoms n+1..2n, and 0 is "none"."""

    def __init__(self, weights: Sequence[Sequence[int]]) -> None:
        n = len(weights)
        size = 2 * n + 2
        self.n, self.used = n, n
        # ends[a][b]: the original edge (u, v) behind the tightest connection of a and b; profit: its weight
        self.ends = [[(a, b) for b in range(size)] for a in range(size)]
        self.profit = [[0] * size for _ in range(size)]
        for i in range(n):
            self.profit[i + 1][1 : n + 1] = list(weights[i])
        self.dual = [0] * size
        greatest = max(map(max, weights))
        self.dual[1 : n + 1] = [greatest] * n  # one value for all: slacks between outer vertices stay even
        self.mate = [0] * size
        self.top = [v if v <= n else 0 for v in range(size)]
        self.cycle: list[list[int]] = [[] for _ in range(size)]
        self.holder = [[0] * (n + 1) for _ in range(size)]  # the part of a blossom that contains a vertex
        for v in range(1, n + 1):
            self.holder[v][v] = v
        self.parent, self.nearest = [0] * size, [0] * size
        self.label, self.seen, self.round = [_FREE] * size, [0] * size, 0
        self.queue: deque[int] = deque()

    def mates(self) -> list[int]:
        """The partner of every vertex, numbered from 0; -1 if unmatched."""
        while self._phase():
            pass
        return [self.mate[v] - 1 for v in range(1, self.n + 1)]

    def _slack(self, a: int, b: int) -> int:
        u, v = self.ends[a][b]
        return self.dual[u] + self.dual[v] - 2 * self.profit[u][v]

    def _consider(self, u: int, x: int) -> None:
        if not self.nearest[x] or self._slack(u, x) < self._slack(self.nearest[x], x):
            self.nearest[x] = u

    def _find_nearest(self, x: int) -> None:
        self.nearest[x] = 0
        for u in range(1, self.n + 1):
            if self.profit[u][x] > 0 and self.top[u] != x and self.label[self.top[u]] == _OUTER:
                self._consider(u, x)

    def _enqueue(self, x: int) -> None:
        if x <= self.n:
            self.queue.append(x)
        else:
            for part in self.cycle[x]:
                self._enqueue(part)

    def _set_top(self, x: int, blossom: int) -> None:
        self.top[x] = blossom
        if x > self.n:
            for part in self.cycle[x]:
                self._set_top(part, blossom)

    def _even_place(self, blossom: int, part: int) -> int:
        """The position of ``part`` in the cycle, reversed if needed so that an even number of edges leads to it."""
        cycle = self.cycle[blossom]
        place = cycle.index(part)
        if place % 2:
            cycle[1:] = cycle[:0:-1]
            place = len(cycle) - place
        return place

    def _match(self, a: int, b: int) -> None:
        u, v = self.ends[a][b]
        self.mate[a] = v
        if a > self.n:
            part = self.holder[a][u]
            place = self._even_place(a, part)
            cycle = self.cycle[a]
            for i in range(place):
                self._match(cycle[i], cycle[i ^ 1])
            self._match(part, b)
            self.cycle[a] = cycle[place:] + cycle[:place]

    def _augment(self, a: int, b: int) -> None:
        while True:
            following = self.top[self.mate[a]]
            self._match(a, b)
            if not following:
                return
            above = self.top[self.parent[following]]
            self._match(following, above)
            a, b = above, following

    def _common(self, a: int, b: int) -> int:
        self.round += 1
        while a or b:
            if a:
                if self.seen[a] == self.round:
                    return a
                self.seen[a] = self.round
                a = self.top[self.mate[a]]
                if a:
                    a = self.top[self.parent[a]]
            a, b = b, a
        return 0

    def _branch(self, start: int, end: int) -> list[int]:
        found, x = [], start
        while x != end:
            inner = self.top[self.mate[x]]
            found += [x, inner]
            self._enqueue(inner)
            x = self.top[self.parent[inner]]
        return found

    def _shrink(self, a: int, base: int, b: int) -> None:
        blossom = self.n + 1
        while blossom <= self.used and self.top[blossom]:
            blossom += 1
        self.used = max(self.used, blossom)
        self.dual[blossom], self.label[blossom], self.mate[blossom] = 0, _OUTER, self.mate[base]
        self.cycle[blossom] = [base, *reversed(self._branch(a, base)), *self._branch(b, base)]
        self._set_top(blossom, blossom)
        for x in range(1, self.used + 1):
            self.profit[blossom][x] = self.profit[x][blossom] = 0
        self.holder[blossom] = [0] * (self.n + 1)
        for part in self.cycle[blossom]:
            for x in range(1, self.used + 1):
                if not self.profit[part][x]:
                    continue
                if not self.profit[blossom][x] or self._slack(part, x) < self._slack(blossom, x):
                    self.ends[blossom][x], self.ends[x][blossom] = self.ends[part][x], self.ends[x][part]
                    self.profit[blossom][x] = self.profit[x][blossom] = self.profit[part][x]
            for x in range(1, self.n + 1):
                if self.holder[part][x]:
                    self.holder[blossom][x] = part
        self._find_nearest(blossom)

    def _open(self, blossom: int) -> None:
        for part in self.cycle[blossom]:
            self._set_top(part, part)
        entry = self.holder[blossom][self.ends[blossom][self.parent[blossom]][0]]
        place = self._even_place(blossom, entry)
        cycle = self.cycle[blossom]
        for i in range(0, place, 2):
            inner, outer = cycle[i], cycle[i + 1]
            self.parent[inner] = self.ends[outer][inner][0]
            self.label[inner], self.label[outer] = _INNER, _OUTER
            self.nearest[inner] = 0
            self._find_nearest(outer)
            self._enqueue(outer)
        self.label[entry], self.parent[entry] = _INNER, self.parent[blossom]
        for part in cycle[place + 1 :]:
            self.label[part] = _FREE
            self._find_nearest(part)
        self.top[blossom] = 0

    def _tight(self, edge: tuple[int, int]) -> bool:
        """Process an edge of slack 0 that starts at an outer vertex; True if it augmented the matching."""
        a, b = self.top[edge[0]], self.top[edge[1]]
        if self.label[b] == _FREE:
            self.parent[b], self.label[b] = edge[0], _INNER
            beyond = self.top[self.mate[b]]
            self.nearest[b] = self.nearest[beyond] = 0
            self.label[beyond] = _OUTER
            self._enqueue(beyond)
        elif self.label[b] == _OUTER:
            base = self._common(a, b)
            if not base:
                self._augment(a, b)
                self._augment(b, a)
                return True
            self._shrink(a, base, b)
        return False

    def _phase(self) -> bool:
        """Grow trees until the matching has one more pair; False if every vertex is matched."""
        for x in range(1, self.used + 1):
            self.label[x], self.nearest[x] = _FREE, 0
        self.queue.clear()
        for x in range(1, self.used + 1):
            if self.top[x] == x and not self.mate[x]:
                self.parent[x], self.label[x] = 0, _OUTER
                self._enqueue(x)
        if not self.queue:
            return False
        while True:
            while self.queue:
                u = self.queue.popleft()
                if self.label[self.top[u]] == _INNER:
                    continue
                for v in range(1, self.n + 1):
                    if self.profit[u][v] > 0 and self.top[u] != self.top[v]:
                        if self._slack(u, v) == 0:
                            if self._tight((u, v)):
                                return True
                        else:
                            self._consider(u, self.top[v])
            self._move_duals()
            self.queue.clear()
            for x in range(1, self.used + 1):
                near = self.nearest[x]
                tight = self.top[x] == x and near and self.top[near] != x and self._slack(near, x) == 0
                if tight and self._tight(self.ends[near][x]):
                    return True
            for blossom in range(self.n + 1, self.used + 1):
                if self._is_inner(blossom) and self.dual[blossom] == 0:
                    self._open(blossom)

    def _is_inner(self, blossom: int) -> bool:
        return self.top[blossom] == blossom and self.label[blossom] == _INNER

    def _move_duals(self) -> None:
        blossoms = range(self.n + 1, self.used + 1)
        steps = [self.dual[blossom] // 2 for blossom in blossoms if self._is_inner(blossom)]
        for x in range(1, self.used + 1):
            if self.top[x] == x and self.nearest[x] and self.label[x] != _INNER:
                slack = self._slack(self.nearest[x], x)
                steps.append(slack if self.label[x] == _FREE else slack // 2)
        step = min(steps)
        for v in range(1, self.n + 1):
            self.dual[v] += {_OUTER: -step, _INNER: step, _FREE: 0}[self.label[self.top[v]]]
        for blossom in blossoms:
            if self.top[blossom] == blossom:
                self.dual[blossom] += {_OUTER: 2 * step, _INNER: -2 * step, _FREE: 0}[self.label[blossom]]
