"""What users of such systems have run into, each a case with a number that tests refer to.

A test says which cases it is about in its docstring: "C58: ...", "... C8, C60." The number is
followed by a punctuation mark there, which tells it from a token's or a segment's name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """`note` says what is different here, or is left; a case without tests must have one."""

    number: int
    title: str
    note: str = ""

    @property
    def name(self) -> str:
        return f"C{self.number}"


CASES = (
    Case(1, "Aborting a request that stands in one of the less usual queues"),
    Case(2, "Callers that are killed at random moments"),
    Case(4, "A session that ends, twice even, wherever it stands"),
    Case(5, "One abort must not spoil the requests after it"),
    Case(
        6,
        "Abort while a KV cache is on its way",
        "A cache that comes in is loaded in the step that needs it, so that only one that "
        "leaves can be pending.",
    ),
    Case(8, "A request that fails at the first stage fails downstream too, at once"),
    Case(9, "An error in a step in which nothing is scheduled"),
    Case(10, "What the worker reports is taken in its own step, or never"),
    Case(12, "A deadline per request; its error names the stage and the last chunk"),
    Case(13, "A prompt that no cache could hold"),
    Case(14, "A worker that is stuck in a step"),
    Case(16, "Timeouts in the wrong unit"),
    Case(17, "Several tokens in one step, none lost on the way downstream"),
    Case(18, "Samples lost where chunks of sound meet"),
    Case(20, "An answer shorter than the first chunk"),
    Case(21, "The end of the sound is not the end of the request"),
    Case(22, "Whole payloads and chunks give the same"),
    Case(24, "Memory of a long request that streams"),
    Case(25, "Lists of tokens that grow with a request"),
    Case(26, "Whose row is whose in a mixed batch"),
    Case(28, "Outputs of staggered requests mixed up"),
    Case(
        29,
        "The same request again and again with the prefix cache",
        "A request that owes rows does not read the prefix cache.",
    ),
    Case(30, "A prefix cache hit under another conditioning, or with rows missing"),
    Case(
        32,
        "Outputs that do not belong to tokens and a cache by tokens",
        "No cache of outputs exists: a request that owes any computes its prompt.",
    ),
    Case(
        33,
        "Hidden states of a prompt that is in the prefix cache",
        "No cache of hidden states exists: a request that owes some computes its prompt.",
    ),
    Case(34, "Preempted and resumed requests give what they would have given"),
    Case(36, "A request that loses its place loses its blocks properly"),
    Case(37, "Stages that cannot compute a request again"),
    Case(38, "A last piece of a prompt that is one token long"),
    Case(41, "A segment ends with steps in flight, and the next one begins"),
    Case(42, "Late frames of a segment that is over"),
    Case(43, "Which stages of a session go on by themselves"),
    Case(
        45,
        "Two updates of a session in a row",
        "Sessions have not been tried with speculative decoding.",
    ),
    Case(46, "Boundaries and errors of a session for a slow reader"),
    Case(47, "Sampling parameters change at the boundary of a segment"),
    Case(49, "What becomes history from one turn to the next"),
    Case(50, "Memory that grows with each request"),
    Case(51, "A worker that runs out of memory"),
    Case(
        54,
        "Sampling parameters reach the stage they are meant for",
        "Logprobs are not given back to callers; asking for them is an error.",
    ),
    Case(55, "Sleep and wake with an acknowledgement"),
    Case(56, "Host time of a step"),
    Case(58, "The end of a segment while the middle stage is parked"),
    Case(59, "A chunk larger than a step is an error and never a quiet stop"),
    Case(60, "A failure in mid-stream is told to everybody it concerns"),
    Case(62, "A bounded window of streams does not fill with those that are over"),
    Case(63, "A model that raises; no sentinel of success after an error"),
    Case(64, "A malformed chunk"),
    Case(
        66,
        "Callers that have left, and aborts of what is unknown",
        "A request is forgotten once every stage has acknowledged its end, so that no stage "
        "has one that is unknown. Late outputs are counted, not logged.",
    ),
    Case(67, "Aborting a turn that has not begun"),
    Case(68, "The last token's row"),
    Case(71, "An absent or unsuitable vLLM"),
    Case(72, "A machine without a GPU"),
    Case(73, "Metrics and a timeline that tell something"),
    Case(76, "Gaps in the sound under load"),
    Case(77, "Many streams that share one vocoder"),
    Case(79, "The gap behind a short first chunk"),
    Case(81, "Text alone costs what it costs without a pipeline"),
    Case(82, "Shared memory after aborts"),
    Case(83, "Text alone sends nothing downstream"),
    Case(85, "A payload that cannot be read is an error, not a wait"),
    Case(87, "An id that comes twice"),
    Case(88, "A cache is handed over though its first token was the last"),
    Case(91, "Hidden states in batches, pieces and repeats"),
    Case(92, "Hidden states of several tokens in one step, drafts rejected"),
    Case(93, "The death of one replica"),
    Case(95, "Abort before anything has been allocated"),
    Case(96, "More of a prompt is cached here than what comes from outside"),
    Case(
        97,
        "Interrupting a spoken answer",
        "Speech is not detected: the caller says when to interrupt, and the time counts from "
        "there.",
    ),
    Case(99, "Conditioning is part of the prefix cache's key"),
    Case(102, "Which row a decode step is conditioned on, to the last"),
    Case(103, "A late token gets into the next segment"),
    Case(105, "Rows and logprobs of a step while the next one runs"),
    Case(
        106,
        "Reading what another device has not written yet",
        "Device memory is not shared between processes: payloads cross in host memory.",
    ),
    Case(107, "Chunks and the end in any order, and nobody waits for another"),
    Case(
        110,
        "Several stages on one device, each with its own memory",
        "Refused on the CPU; of other devices the budgets are told, and their own start fails.",
    ),
    Case(
        111,
        "Payloads that change on the way",
        "Checksums are an option of edges that hand a KV cache on; elsewhere memory that is "
        "looked at is not written.",
    ),
    Case(113, "An abort tells its caller what there was"),
    Case(115, "A producer that has nothing to say"),
    Case(116, "More requests than places"),
    Case(117, "Preemption with several steps in flight"),
    Case(119, "Preemption that would go on for ever"),
    Case(120, "A cache is triggered and its request preempted"),
    Case(123, "The prefix cache after a sleep"),
    Case(126, "Names inside vLLM that change"),
    Case(127, "Buffers that the next step overwrites"),
)
