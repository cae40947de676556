"""The candidates of a large fleet that a view leaves out, and what its decisions can say all the same.

    view.rows      who could win by a policy in use then, or a few of them where many are alike (see `shortlist.py`)
    view.others    how many more there were: what they held and had to do, nobody wrote down

Who decided chose as if all had a row, and from the same rows chooses the same again. Another policy does so where its
choices are settled by nothing but what settled those of the policy that decided. Anywhere else its choice is the best
of those that are shown, and might have been somebody else.
"""

from __future__ import annotations

from scorers.contract import View


def describe_omitted(view: View) -> str | None:
    """For people, without a full stop at the end. None: every candidate is shown."""
    if not view.others:
        return None
    return (
        f"not priced: {view.others:,} of {len(view.rows) + view.others:,} candidates; each holds the same of the "
        "prompt as one of these and has no less work ahead, so none could do better by a policy in use, though one of "
        "them may be the runner-up"
    )
