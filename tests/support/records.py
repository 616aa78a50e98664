"""Records of requests: one of a voice assistant, and any that there could be."""

from __future__ import annotations

from hypothesis import strategies as st

from antiphon.observe.record import EdgeSpan, Playback, StageSpan, Timeline

STARTED_UNIX_S = 1_700_000_000.0

VOICE = Timeline(
    id="3fa80c220",
    label="mine",
    pipeline="voice",
    entry="chat",
    started_unix_s=STARTED_UNIX_S,
    total_s=2.0,
    outcome="stop",
    prompt_tokens=16,
    output_tokens=40,
    ttft_s=0.125,
    ttfa_s=0.75,
    playback=Playback(
        audio_s=3.0, worst_underrun_s=0.0, total_underrun_s=0.0, gaps=0, continuous=True
    ),
    rtf=0.5,
    text_s=tuple((0.125 + index / 64, 1) for index in range(40)),
    audio_s=((0.75, 0.5), (1.0, 1.0), (1.5, 1.5)),
    stages=(
        StageSpan(
            stage="thinker",
            part=0,
            submitted_s=0.0,
            input_s=0.0,
            first_s=0.125,
            last_s=0.75,
            tokens=40,
            finish="stop",
        ),
        StageSpan(
            stage="talker",
            part=0,
            submitted_s=0.0,
            input_s=0.25,
            first_s=0.5,
            last_s=1.5,
            tokens=120,
            finish="stop",
        ),
        StageSpan(
            stage="code2wav",
            part=0,
            submitted_s=0.0,
            input_s=0.625,
            first_s=0.75,
            last_s=2.0,
            tokens=72000,
            finish="stop",
        ),
    ),
    edges=(
        EdgeSpan(
            edge="speech",
            producer="thinker",
            consumer="talker",
            part=0,
            first_s=0.25,
            last_s=0.75,
            chunks=3,
            bytes=4096,
            consumer_parts=(0,),
            producer_output_s=0.125,
            first_used_s=0.5,
            last_used_s=1.25,
            consumer_output_s=0.5,
        ),
        EdgeSpan(
            edge="codes",
            producer="talker",
            consumer="code2wav",
            part=0,
            first_s=0.625,
            last_s=1.5,
            chunks=6,
            bytes=9216,
            consumer_parts=(0,),
            producer_output_s=0.5,
            first_used_s=0.75,
            last_used_s=1.75,
            consumer_output_s=0.75,
        ),
    ),
)

_MOMENTS = st.floats(0.0, 1e4, allow_subnormal=False)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any request: stages in a chain, several parts of each, ended anywhere."""
    total_s = draw(_MOMENTS)
    moments = st.floats(0.0, 1.0).map(lambda share: share * total_s)
    names = draw(st.lists(st.from_regex(r"[a-z0-9_-]{1,24}", fullmatch=True), unique=True))
    stages: list[StageSpan] = []
    edges: list[EdgeSpan] = []
    for index, name in enumerate(names):
        parts = draw(st.integers(1, 3))
        stages += [draw(_units(name, part, moments)) for part in range(parts)]
        if index + 1 < len(names):
            edges += [draw(_crossings(name, names[index + 1], p, moments)) for p in range(parts)]
    outcome = draw(st.sampled_from(["stop", "length", "interrupt", "abort", "error"]))
    return Timeline(
        id="3fa80c220",
        label=draw(st.none() | st.text(max_size=200)),
        pipeline="voice",
        entry="chat",
        started_unix_s=STARTED_UNIX_S,
        total_s=total_s,
        outcome=outcome,
        cause="stage_died" if outcome == "error" else None,
        message=draw(st.text()) if outcome == "error" else None,
        ttft_s=draw(st.none() | moments),
        text_s=tuple((at_s, 1) for at_s in sorted(draw(st.lists(moments, max_size=8)))),
        audio_s=tuple((at_s, 0.5) for at_s in sorted(draw(st.lists(moments, max_size=8)))),
        stages=tuple(stages),
        edges=tuple(edges),
    )


@st.composite
def _units(draw: st.DrawFn, name: str, part: int, moments: st.SearchStrategy[float]) -> StageSpan:
    """One that has come as far as some number of moments."""
    known = sorted(draw(st.lists(moments, min_size=1, max_size=4)))
    submitted, input_, first, last = (*known, None, None, None)[:4]
    assert submitted is not None
    return StageSpan(
        stage=name,
        part=part,
        submitted_s=submitted,
        input_s=input_,
        first_s=first,
        last_s=last,
        tokens=draw(st.integers(0, 10**9)),
        finish=None if last is None else draw(st.sampled_from(["stop", "error"])),
    )


@st.composite
def _crossings(
    draw: st.DrawFn, producer: str, consumer: str, part: int, moments: st.SearchStrategy[float]
) -> EdgeSpan:
    first, last, used = sorted(draw(st.lists(moments, min_size=3, max_size=3)))
    chunks = draw(st.integers(0, 5))
    return EdgeSpan(
        edge=f"to-{consumer}",
        producer=producer,
        consumer=consumer,
        part=part,
        first_s=first,
        last_s=last,
        chunks=chunks,
        bytes=draw(st.integers(0, 10**13)),
        cache=draw(st.booleans()),
        consumer_parts=(part,) if chunks else (),
        first_used_s=draw(st.sampled_from([None, last])),
        last_used_s=draw(st.sampled_from([None, used])),
    )
