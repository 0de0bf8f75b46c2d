"""Keys and values of prefixes seen before: a radix tree over token ids.

Each node holds a run of tokens and their keys and values. A prompt walks down as far as it agrees; what it walked over
is copied into its row and need not be computed. The least recently used leaves go first when the budget is full. All of
it is worthless once the weights change, so it is then emptied.
"""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import Tensor

from services.local_engine.lora import Adapter

# A conversation grows its path turn by turn. Below this size a leaf is extended by copying it, because many small nodes
# cost more on every later walk than the copy does.
_MERGE_BYTES = 1 << 20


class _Node:
    """A run of tokens below a parent; `cells` is [layers, len(tokens), 2, kv_heads, head_dim]."""

    __slots__ = ("cells", "children", "parent", "tokens", "used")

    def __init__(self, tokens: list[int], cells: Tensor | None, parent: _Node | None) -> None:
        self.tokens = tokens
        self.cells = cells
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.used = 0


def _agree(a: list[int], b: list[int]) -> int:
    """Length of the common prefix of two lists, by halving (list comparison runs in C)."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n - 1  # a[:low] agrees, a[:high + 1] does not
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PrefixCache:
    """Longest-prefix reuse under a token budget.

    Args:
        budget: how many tokens' keys and values may be kept; 0 keeps nothing.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens = 0
        self._clock = 0
        self._root = _Node([], None, None)

    def clear(self) -> None:
        """Forget everything."""
        self._root = _Node([], None, None)
        self.tokens = 0

    def match(self, ids: list[int], limit: int) -> tuple[int, list[Tensor]]:
        """The longest cached prefix of `ids[:limit]`.

        Returns:
            Its length, and the keys and values of its pieces in order, views of [layers, n, 2, kv_heads, head_dim].
        """
        self._clock += 1
        node, done, pieces = self._root, 0, []
        while done < limit:
            child = node.children.get(ids[done])
            if child is None:
                break
            n = _agree(child.tokens, ids[done : min(limit, done + len(child.tokens))])
            child.used = self._clock
            assert child.cells is not None
            pieces.append(child.cells if n == len(child.tokens) else child.cells[:, :n])
            done += n
            if n < len(child.tokens):
                break
            node = child
        return done, pieces

    def missing_from(self, ids: list[int]) -> int:
        """How many leading tokens of `ids` are cached already; marks them as used."""
        return self.match(ids, len(ids))[0]

    def insert(self, ids: list[int], start: int, cells: Tensor) -> None:
        """Add the tokens `ids[start:]` whose keys and values are `cells`; `ids[:start]` is cached already.

        Args:
            ids: a whole prefix.
            start: what `missing_from(ids)` returned, with nothing in between.
            cells: [layers, len(ids) - start, 2, kv_heads, head_dim]; owned by the cache from now on.
        """
        if len(ids) <= start or len(ids) > self.budget:
            return
        node, done = self._root, 0
        while done < start:
            child = node.children[ids[done]]
            n = min(len(child.tokens), start - done)
            if n < len(child.tokens):
                child = self._split(child, n)
            done += n
            node = child
        if node.cells is not None and not node.children and node.cells.nbytes <= _MERGE_BYTES:
            node.tokens = node.tokens + ids[start:]
            node.cells = torch.cat((node.cells, cells), dim=1)
        else:
            leaf = _Node(ids[start:], cells, node)
            leaf.used = self._clock
            node.children[ids[start]] = leaf
        self.tokens += len(ids) - start
        if self.tokens > self.budget:
            self._evict()

    def _split(self, node: _Node, n: int) -> _Node:
        """Cut a node after its first `n` tokens; returns the upper part."""
        assert node.cells is not None
        assert node.parent is not None
        upper = _Node(node.tokens[:n], node.cells[:, :n].clone(), node.parent)
        upper.used = node.used
        node.parent.children[node.tokens[0]] = upper
        node.tokens, node.cells = node.tokens[n:], node.cells[:, n:].clone()
        node.parent = upper
        upper.children[node.tokens[0]] = node
        return upper

    def _leaves(self) -> list[_Node]:
        found, stack = [], list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if not node.children:
                found.append(node)
        return found

    def _evict(self) -> None:
        """Drop the least recently used leaves down to 7/8 of the budget, so that eviction is rare."""
        goal = self.budget - self.budget // 8
        while self.tokens > goal:
            for leaf in sorted(self._leaves(), key=lambda node: node.used):
                assert leaf.parent is not None
                del leaf.parent.children[leaf.tokens[0]]
                self.tokens -= len(leaf.tokens)
                if self.tokens <= goal:
                    break


class PrefixCaches:
    """One cache for the model alone and one for each adapter, because keys and values differ.

    Args:
        budget: of each of them.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._plain = PrefixCache(budget)
        self._adapted: dict[Adapter, PrefixCache] = {}
        self._gone: WeakSet[Adapter] = WeakSet()  # unloaded; requests may still use them

    @property
    def tokens(self) -> int:
        """Tokens in all of them."""
        return self._plain.tokens + sum(c.tokens for c in self._adapted.values())

    def of(self, adapter: Adapter | None) -> PrefixCache:
        """The cache of an adapter, or of none; one that keeps nothing of an adapter that was unloaded."""
        if adapter is None:
            return self._plain
        if adapter in self._gone:
            return PrefixCache(0)
        return self._adapted.setdefault(adapter, PrefixCache(self.budget))

    def clear(self) -> None:
        """Forget everything."""
        self._plain.clear()
        self._adapted.clear()

    def forget(self, adapter: Adapter) -> None:
        """Forget what an adapter left, and what requests that still use it would leave."""
        self._gone.add(adapter)
        self._adapted.pop(adapter, None)
