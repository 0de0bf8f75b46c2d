"""Every type that crosses a process border, one file for each who receives them.

Each message names its producer and consumer. Messages are frozen and refuse unknown fields. Spans are half open
`[start, end)`. Worked examples of all of them, the golden JSON of the contract tests, stand in `docs/overview.md`. Sections of
a run's document travel as they are (`triforge.config`).
"""

from triforge.config.base import (
    Approval,
    Direction,
    Params,
    PoolStatus,
    ProposalState,
    Purpose,
    Role,
    Sampling,
    Split,
    TaskState,
    TrainedRole,
)
from triforge.types.base import ErrorInfo, Extra, Message, Page
from triforge.types.env_adapter import (
    MAX_TASKS,
    AcceptanceTest,
    CheckResult,
    DiagnosisNote,
    GenerateSpec,
    Lineage,
    Measurement,
    PlanRequest,
    PoolRequest,
    PoolState,
    Proposal,
    ProposalDetail,
    TaskDetail,
    TaskOutcome,
    TaskUpload,
    mean_score,
)
from triforge.types.learner import (
    BroadcastOffer,
    TensorBucket,
    TrainBatch,
    TrainRow,
    WeightsReady,
    WeightsRecord,
    WeightsState,
    WeightsUpdate,
    WeightVersion,
)
from triforge.types.numbers import LARGEST, Reported, number, reported
from triforge.types.people import (
    ENDED,
    Event,
    LabelRecord,
    LabelRequest,
    RunState,
    RunStatus,
    RunStep,
    StepLabel,
    TrajectoryPage,
    TrajectoryRecord,
    TrajectorySummary,
    UnsureStep,
    Verdict,
)
from triforge.types.policy import (
    ChatMessage,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    ImagePart,
    ImageRef,
    PlacedImage,
    TextPart,
    VersionSpan,
)
from triforge.types.rollout import (
    GroupJudgement,
    GroupTask,
    JudgedGroup,
    JudgeTask,
    JudgeText,
    Outcome,
    PlannedGroup,
    Player,
    ProgramLimits,
    Segment,
    Step,
    StepVotes,
    Task,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
    Vote,
)
from triforge.types.sessions import (
    MadeSession,
    OpenSession,
    SessionReward,
    SessionState,
    SessionStatus,
    SessionTrace,
    Turn,
)
from triforge.types.sidecar import (
    CreditReport,
    Curriculum,
    Draw,
    DrawnTask,
    DrawRequest,
    ProposalSummary,
    Report,
    ReportReply,
    RolloutCredit,
    RolloutReply,
    RolloutReport,
    StepCredit,
    TextMessage,
)
