"""Keys and values of earlier prefixes: a radix tree over token ids.

Each node holds a run of tokens with their keys and values. A prompt follows the tree as far as its tokens agree; the keys and
values on that way are copied into its row and are not computed. The least recently used leaves are dropped when the budget is
full. New weights empty the tree.
"""

from __future__ import annotations

import torch
from torch import Tensor


class _Node:
    """A run of tokens below a parent; `cells` is [layers, len(tokens), 2, kv_heads, head_dim]."""

    __slots__ = ("cells", "children", "parent", "tokens", "used")

    def __init__(self, tokens: list[int], cells: Tensor, parent: _Node | None, used: int) -> None:
        self.tokens, self.cells, self.parent, self.used = tokens, cells, parent, used
        self.children: dict[int, _Node] = {}


def _agree(a: list[int], b: list[int]) -> int:
    """Return the length of the common prefix of two lists."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


class PrefixCache:
    """Longest-prefix reuse under a budget of tokens whose keys and values are kept; 0 keeps nothing."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._clock = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._root = _Node([], torch.empty(0), None, 0)
        self.tokens = 0

    def match(self, ids: list[int], limit: int) -> tuple[int, list[Tensor]]:
        """Return the length of the longest cached prefix of `ids[:limit]`, and views of its cells, piece by piece."""
        self._clock += 1
        node, done, pieces = self._root, 0, []
        while done < limit:
            child = node.children.get(ids[done])
            if child is None:
                break
            n = _agree(child.tokens, ids[done : min(limit, done + len(child.tokens))])
            child.used = self._clock
            pieces.append(child.cells if n == len(child.tokens) else child.cells[:, :n])
            done += n
            if n < len(child.tokens):
                break
            node = child
        return done, pieces

    def insert(self, ids: list[int], start: int, cells: Tensor) -> None:
        """Add the tokens `ids[start:]` with their `cells`; `start` is the match of all `ids`, with nothing in between."""
        if len(ids) <= start or len(ids) > self.budget:
            return
        node, done = self._root, 0
        while done < start:
            node = node.children[ids[done]]
            n = min(len(node.tokens), start - done)
            if n < len(node.tokens):
                node = self._split(node, n)
            done += n
        node.children[ids[start]] = _Node(ids[start:], cells, node, self._clock)
        self.tokens += len(ids) - start
        if self.tokens > self.budget:
            self._evict()

    def _split(self, node: _Node, n: int) -> _Node:
        """Cut a node after its first `n` tokens; return the upper part."""
        assert node.parent is not None
        upper = _Node(node.tokens[:n], node.cells[:, :n].clone(), node.parent, node.used)
        node.parent.children[node.tokens[0]] = upper
        node.tokens, node.cells, node.parent = node.tokens[n:], node.cells[:, n:].clone(), upper
        upper.children[node.tokens[0]] = node
        return upper

    def _leaves(self) -> list[_Node]:
        nodes = list(self._root.children.values())
        for node in nodes:  # grows while it is walked
            nodes.extend(node.children.values())
        return [node for node in nodes if not node.children]

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
