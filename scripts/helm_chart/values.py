"""Values of the chart, and their schema."""

from __future__ import annotations

from typing import Any

from scripts.helm_chart.source import EXCLUSIVE
from scripts.k8s_test.cases import CLUSTERS, ONLY
from scripts.k8s_test.manifests import folders

# In all of these NAME is the object's name and ROLE its second word; PARENT and LEAF are the last two steps of the path.
_POD = "spec/(?:template|leaderWorkerTemplate/workerTemplate)/spec"
_GPU_PODS = r"(StatefulSet|LeaderWorkerSet)/engine-.*|(Deployment|Job)/learner-.*"
_OTHER_PODS = r"(?!.*/(engine|learner)-)(Deployment|StatefulSet|Job)/.*"
_MONITORS = "ServiceMonitor/.*|PodMonitor/.*|PrometheusRule/.*"
_GROUP = "LeaderWorkerSet/.*"

# Kind/name, the path, what of the text there, and what it becomes.
SCALARS = [
    (r".*", r"^metadata/namespace$", r".+", "{{ .Release.Namespace }}"),
    (r"Namespace/.*", r"^metadata/name$", r".+", "{{ .Release.Namespace }}"),
    (r"ScaledObject/.*", r"/address$", r"\.triforge\.", ".{{ .Release.Namespace }}."),
    (r".*", r"/image$", r"^triforge/([a-z-]+):.*$", r"{{ .Values.image.repository }}/\1:{{ .Values.image.tag | default .Chart.AppVersion }}"),
    (r".*", r"/image$", r"^lmsysorg/.*", "{{ .Values.image.sglang }}"),
    (r".*", r"/image$", r"^postgres:.*", "{{ .Values.image.postgres }}"),
    (r".*", r"/image$", r"^valkey/.*", "{{ .Values.image.valkey }}"),
    (r".*", r"/name$", r"^triforge-secrets$", "{{ .Values.secrets.main }}"),
    (r".*", r"/name$", r"^triforge-s3$", "{{ .Values.secrets.s3 }}"),
    (r".*", r"/name$", r"^triforge-hub$", "{{ .Values.secrets.hub }}"),
    (r"Job/load-models", r"/POLICY_MODEL/value$", r".+", "{{ .Values.models.policy }}"),
    (r"Job/load-models", r"/REWARD_MODEL/value$", r".+", "{{ .Values.models.reward }}"),
    (r"Job/load-models", r"/REWRITER_MODEL/value$", r".+", "{{ .Values.models.rewriter }}"),
    (r".*", r"^spec/replicas$", r".+", r'{{ dig "NAME" \g<0> .Values.replicas }}'),
    (r".*", r"/resources/(requests|limits)/(cpu|memory|ephemeral-storage)$", r".+", r'{{ dig "NAME" "PARENT" "LEAF" "\g<0>" .Values.resources }}'),
    (r"StatefulSet/engine-.*", r"/nvidia.com/gpu$", r"\d+", r'{{ dig "ROLE" "gpus" \g<0> .Values.engines }}'),
    (r"StatefulSet/engine-.*", r"/args/", r"^--tp=(\d+)$", r'--tp={{ dig "ROLE" "gpus" \1 .Values.engines }}'),
    (r"Job/learner-.*", r"/nvidia.com/gpu$", r"\d+", r'{{ dig "ROLE" "gpus" \g<0> .Values.learners }}'),
    (r"Job/learner-.*", r"/args/", r"--nnodes=(\d+)", r'--nnodes={{ dig "ROLE" "nodes" \1 .Values.learners }}'),
    (r"Job/learner-.*", r"/args/", r"--nproc-per-node=(\d+)", r'--nproc-per-node={{ dig "ROLE" "gpus" \1 .Values.learners }}'),
    (r"Job/learner-.*", r"^spec/(completions|parallelism)$", r".+", r'{{ dig "ROLE" "nodes" \g<0> .Values.learners }}'),
    (_GROUP, r"/size$", r".+", r'{{ dig "nodes" \g<0> .Values.multiNodeEngine }}'),
    (_GROUP, r"/nvidia.com/gpu$", r"\d+", r'{{ dig "gpus" \g<0> .Values.multiNodeEngine }}'),
    (_GROUP, r"/args/", r"^--tp=16$", '--tp={{ mul (dig "nodes" 2 .Values.multiNodeEngine) (dig "gpus" 8 .Values.multiNodeEngine) }}'),
    (r".*", r"/rdma_shared_device_a#$", r".+", "{{ .Values.rdma.resource }}"),
    (r"PersistentVolumeClaim/.*|StatefulSet/(postgres|valkey)", r"/storage$", r".+", r'{{ dig "NAME" "size" "\g<0>" .Values.storage }}'),
    (r"Ingress/.*", r"", r"^triforge\.example\.com$", "{{ .Values.ingress.host }}"),
    (r"Ingress/.*", r"/secretName$", r".+", "{{ .Values.ingress.tlsSecret }}"),
    (r"HTTPRoute/.*", r"", r"^triforge\.example\.com$", "{{ .Values.gateway.host }}"),
    (r"HTTPRoute/.*", r"^spec/parentRefs/gateway/(name|namespace|sectionName)$", r".+", "{{ .Values.gateway.LEAF }}"),
    (r"HorizontalPodAutoscaler/.*|ScaledObject/.*", r"^spec/min\w+$", r".+", r'{{ dig "NAME" "min" \g<0> .Values.autoscaling }}'),
    (r"HorizontalPodAutoscaler/.*|ScaledObject/.*", r"^spec/max\w+$", r".+", r'{{ dig "NAME" "max" \g<0> .Values.autoscaling }}'),
    (r"NetworkPolicy/.*", r"/namespaceSelector/matchLabels/kubernetes.io/metadata.name$", r"^(keda|monitoring|observability)$", r"{{ .Values.namespaces.\1 }}"),
    (r"ScaledObject/.*", r"/listLength$", r".+", r'{{ dig "NAME" "jobs" \g<0> .Values.autoscaling }}'),
]  # fmt: skip
# Kind/name, the path, the key there, and the values that stand there when they are given.
BLOCKS = [
    (r"ServiceAccount/.*", "", "imagePullSecrets", ".Values.image.pullSecrets"),
    (r"ServiceAccount/.*", "metadata", "annotations", ".Values.serviceAccount.annotations"),
    (r".*", f"{_POD}/containers/[^/]+", "imagePullPolicy", ".Values.image.pullPolicy"),
    (_GPU_PODS, _POD, "nodeSelector", ".Values.gpuNodes.nodeSelector"),
    (_GPU_PODS, _POD, "tolerations", ".Values.gpuNodes.tolerations"),
    (_OTHER_PODS, _POD, "nodeSelector", ".Values.otherNodes.nodeSelector"),
    (_OTHER_PODS, _POD, "tolerations", ".Values.otherNodes.tolerations"),
    (r"PersistentVolumeClaim/.*", "metadata", "annotations", ".Values.storage.annotations"),
    (r"PersistentVolumeClaim/.*", "spec", "storageClassName", '(dig "NAME" "className" "" .Values.storage)'),
    (r"StatefulSet/.*", "spec/volumeClaimTemplates/[^/]+/spec", "storageClassName", '(dig "NAME" "className" "" .Values.storage)'),
    (r"Ingress/.*", "spec", "ingressClassName", ".Values.ingress.className"),
    (r"Ingress/.*", "metadata", "annotations", ".Values.ingress.annotations"),
    (_MONITORS, "metadata", "labels", ".Values.monitoring.labels"),
]  # fmt: skip
# The same of a list, and the values that stand at its end; of a mapping, and the values that stand over its own.
APPENDED = (r".*/engine-.*", f"{_POD}/containers/engine/args", '(dig "ROLE" "args" (list) .Values.engines)')  # fmt: skip
MERGED = (r"ConfigMap/triforge-env", "data", ".Values.config")
# Kind/name, and the value without which it is not there.
OBJECTS = [("Namespace/.*", ".Values.namespace.create"), ("PriorityClass/.*", ".Values.priorityClasses.create")]  # fmt: skip

_ROLES = ("policy", "reward", "rewriter")
_BY_LOAD = {"autoscaling": ("env-adapter", "reward"), "keda": ("rollout-worker", "judge-worker", "adapt-worker")}  # fmt: skip
_SCALED = tuple(name for names in _BY_LOAD.values() for name in names)
_OTHERS = ("trainer", "dashboard", "valkey", "postgres", "models", "load-models", "toolbox")
_WORKLOADS = (*_SCALED, *(f"{role}-model" for role in _ROLES), *(f"engine-{role}" for role in _ROLES),
              "engine-policy-group", "learner-policy", "learner-reward", *_OTHERS)  # fmt: skip


def checks() -> list[tuple[str, str]]:
    """Conditions over several values at once, and what to say where one holds."""
    found = [
        (f'and (has "{name}" .Values.components) (not (has .Values.overlay (list {_words(overlays)})))',
         f"components: given {name}, which is for the overlays {', '.join(overlays)}; leave it out or set `overlay`")
        for name, overlays in ONLY.items()
    ]  # fmt: skip
    some = " ".join(f'(has "{name}" .Values.components | ternary 1 0)' for name in EXCLUSIVE)
    found += [
        ('semverCompare ">=0.1.0-0, <1.33.0-0" .Capabilities.KubeVersion.Version',  # a build from sources says 0.0.0
         "Kubernetes: given a version before 1.33, expected 1.33 or newer, which knows matchLabelKeys, podReplacementPolicy and hostUsers"),
        (f"gt (add {some}) 1",
         f"components: given several of {', '.join(EXCLUSIVE)}, expected one: keda-external-redis is the two others together"),
        ('and (eq .Values.overlay "cpu") (or ' + " ".join(f'(dig "{role}" "gpus" 0 .Values.engines)' for role in _ROLES) + ")",
         "engines.*.gpus: given for the overlay cpu, whose engines have none; leave it out or set `overlay`"),
        ('and (ne .Values.overlay "gpu-cluster") (or .Values.learners.policy .Values.learners.reward)',
         "learners: given for an overlay whose learners have one process each; leave it out or set `overlay` to gpu-cluster"),
    ]  # fmt: skip
    for component, names in _BY_LOAD.items():
        there = f'(has "{component}" .Values.components)'
        if component == "keda":
            there = f'(or {there} (has "keda-external-redis" .Values.components))'
        for name in names:
            found.append((f'and {there} (hasKey .Values.replicas "{name}")',
                          f"replicas.{name}: given a number that the component {component} owns; set autoscaling.{name}.min and .max"))  # fmt: skip
    return found


def schema() -> dict[str, Any]:
    """JSON schema of the values; everything that it does not name is refused."""
    text = {"type": "string"}
    name = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}
    image = {"type": "string", "pattern": r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$"}
    repository = {"type": "string", "pattern": r"^[\w.-]+/[\w.-]+$"}
    count, some = {"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 1}
    size = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}
    texts = {"type": "object", "additionalProperties": text}
    nodes = _only(nodeSelector=texts, tolerations={"type": "array", "items": {"type": "object"}})
    yes = _only(create={"type": "boolean"})
    requests = _only(**{"cpu": size, "memory": size, "ephemeral-storage": size})
    resources = _only(requests=requests, limits=_only(memory=size))
    engine = _only(gpus=some, args={"type": "array", "items": text})
    scaled = _only(min=count, max=some, jobs=some)
    parts = _only(
        overlay={"enum": list(CLUSTERS)},
        components={"type": "array", "items": {"enum": folders("components")}, "uniqueItems": True},
        image=_only(
            repository=image, tag={"type": "string", "pattern": r"^[a-zA-Z0-9._-]*$"}, sglang=image, postgres=image, valkey=image,
            pullPolicy={"enum": ["", "Always", "IfNotPresent", "Never"]},
            pullSecrets={"type": "array", "items": _only(name=name)},
        ),
        secrets=_only(main=name, s3=name, hub=name),
        config={"type": "object", "propertyNames": {"pattern": "^[A-Z][A-Z0-9_]*$"}, "additionalProperties": text},
        models=_only(**dict.fromkeys(_ROLES, repository)),
        replicas=_only(**dict.fromkeys([*_SCALED, "dashboard", *(f"engine-{role}" for role in _ROLES)], count)),
        resources=_only(**dict.fromkeys(_WORKLOADS, resources)),
        engines=_only(**dict.fromkeys(_ROLES, engine)),
        learners=_only(**dict.fromkeys(_ROLES[:2], _only(nodes=some, gpus=some))),
        multiNodeEngine=_only(nodes=some, gpus=some),
        storage=_only(annotations=texts, **dict.fromkeys(["artifacts", "models", "postgres", "valkey"], _only(size=size, className=name))),
        gpuNodes=nodes, otherNodes=nodes,
        ingress=_only(host=name, className=text, tlsSecret=name, annotations=texts),
        gateway=_only(host=name, name=name, namespace=name, sectionName=name),
        autoscaling=_only(**dict.fromkeys(_SCALED, scaled)),
        monitoring=_only(labels=texts), rdma=_only(resource=text), serviceAccount=_only(annotations=texts),
        namespaces=_only(**dict.fromkeys(["keda", "monitoring", "observability"], name)),
        priorityClasses=yes, namespace=yes, **{"global": {"type": "object"}},  # Helm's own
    )  # fmt: skip
    return {"$schema": "http://json-schema.org/draft-07/schema#", **parts, "required": ["overlay"]}


def _only(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _words(names: Any) -> str:
    return " ".join(f'"{name}"' for name in names)
