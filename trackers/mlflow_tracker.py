"""MLflow, where people look: a study is a parent run, a trial a child run, each once however often told."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from .artifact_pass import stage
from .entries import StudyClosed, StudyOpened
from .mlflow_layout import RunContent, experiment_name, study_end, study_run, study_uid, trial_run
from .problems import TrackerProblem
from .records import TrialRecord, WorkloadRef
from .redaction import redactor
from .store_uri import check_reachable, check_uri, is_database, key_of, with_driver

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

__all__ = ["MlflowTracker"]

T = TypeVar("T")

# Retries are off because a repeated POST makes a second run; a whole repeat, which looks first, is ours.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "PGCONNECT_TIMEOUT": "10",
}
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE")
# Hushing MLflow is a change to the whole process, so that one call must end before the next begins.
_ONE_AT_A_TIME = threading.RLock()
_EXPERIMENT = {"mlflow.experimentKind": "custom_model_development"}


class MlflowTracker:
    """One store, connected at the first call (a new SQLite file costs its migrations then) until `close`.

    Calls are idempotent and safe from threads; each raises TrackerProblem where the store does not answer
    (`outage`) or refuses. User, password and token come from MLflow's own environment variables.

    Args:
        uri: `sqlite:////absolute/path`, `postgresql://...`, or a server's `http(s)://...`.
        artifacts: Where artifacts go when the store is a database; a server has its own place.
        environ: Whose secrets to keep out of the store.

    Raises:
        TrackerProblem: The URI is of no use here.
    """

    store: str
    """The URI without secrets."""

    def __init__(self, uri: str, artifacts: Path, *, environ: Mapping[str, str] = os.environ) -> None:
        self._redact = redactor(environ)
        self.store = self._redact(uri)
        check_uri(uri, self.store)
        self._uri, self._artifacts = with_driver(uri), artifacts
        self._connected: MlflowClient | None = None
        self._parents: dict[tuple[str, str], tuple[str, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        client, self._connected = self._connected, None
        engine = getattr(getattr(getattr(client, "_tracking_client", None), "store", None), "engine", None)
        if engine is not None:
            engine.dispose()

    def open_study(self, opened: StudyOpened) -> tuple[str, str]:
        """(experiment id, run id) of the study's parent run, made where it is absent."""
        return self._do(lambda client: self._parent(client, opened))

    def record(self, trial: TrialRecord, opened: StudyOpened, folder: Path | None = None) -> str:
        """The run id of the trial's run, written where it is absent or was left unfinished."""
        content = trial_run(trial, self._redact, folder)
        return self._do(lambda client: self._child(client, content, opened))

    def close_study(self, closed: StudyClosed, opened: StudyOpened) -> str:
        """The run id of the parent run, with verdict, peak and the files that came at the end."""
        content = study_end(closed, self._redact)

        def end(client: MlflowClient) -> str:
            _, run_id = self._parent(client, opened)
            self._fill(client, run_id, content, content.tags)
            client.set_terminated(run_id, content.status, content.ended_ms)
            return run_id

        return self._do(end)

    def known(self, opened: StudyOpened) -> dict[str, str]:
        """What the store holds whole of a study: trial uid -> run id; reads every run of it."""

        def read(client: MlflowClient) -> dict[str, str]:
            experiment_id, parent = self._parent(client, opened)
            runs = _search(client, experiment_id, "mlflow.parentRunId", parent)
            return {run.data.tags.get("repeak.trial_uid", ""): run.info.run_id for run in runs if _whole(run)}

        return self._do(read)

    def _do(self, action: Callable[[MlflowClient], T]) -> T:
        with _ONE_AT_A_TIME, _quiet():
            try:
                return action(self._client())
            except _errors() as error:
                if not (problem := self._problem(error)).outage and "IntegrityError" not in str(error):
                    raise problem from error
            # An answer was lost on its way, or another writer was faster: the second try finds what is there.
            try:
                return action(self._client())
            except _errors() as error:
                raise self._problem(error) from error

    def _client(self) -> MlflowClient:
        if self._connected is None:
            from mlflow import MlflowClient  # noqa: PLC0415 - its import takes seconds, and a run may not need it

            check_reachable(self._uri, self.store)
            self._connected = MlflowClient(tracking_uri=self._uri)
        return self._connected

    def _experiment(self, client: MlflowClient, name: str) -> str:
        found = client.get_experiment_by_name(name)
        if found is None:
            place = str(self._artifacts.absolute() / key_of(name)) if is_database(self._uri) else None
            try:
                return str(client.create_experiment(name, artifact_location=place, tags=_EXPERIMENT))
            except _errors():
                # Another driver may have been faster.
                found = client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            hint = f"Restore it (`mlflow experiments restore -x {found.experiment_id}`), or rename the plan."
            raise TrackerProblem(f"The experiment {name!r} was deleted in {self.store}.", hint)
        return str(found.experiment_id)

    def _parent(self, client: MlflowClient, opened: StudyOpened) -> tuple[str, str]:
        key = name, uid = experiment_name(opened), study_uid(opened)
        if key not in self._parents:
            content = study_run(opened, self._redact)
            experiment_id = self._experiment(client, name)
            found = _search(client, experiment_id, "repeak.study_uid", uid)
            run_id = found[0].info.run_id if found else _create(client, experiment_id, content)
            if not found or not _whole(found[0]):
                self._fill(client, run_id, content)
            self._parents[key] = experiment_id, str(run_id)
        return self._parents[key]

    def _child(self, client: MlflowClient, content: RunContent, opened: StudyOpened) -> str:
        experiment_id, parent = self._parent(client, opened)
        found = _search(client, experiment_id, "repeak.trial_uid", content.tags["repeak.trial_uid"])
        done = [run for run in found if _whole(run)]
        if done:
            return str(done[0].info.run_id)
        run_id = found[0].info.run_id if found else _create(client, experiment_id, content, parent)
        self._fill(client, run_id, content)
        client.set_terminated(run_id, content.status, content.ended_ms)
        return str(run_id)

    def _fill(self, client: MlflowClient, run_id: str, content: RunContent, tags: Mapping[str, str] = {}) -> None:
        from mlflow import entities  # noqa: PLC0415 - as above

        metrics = [entities.Metric(*point) for point in content.metrics]
        params = [entities.Param(*pair) for pair in content.params.items()]
        if metrics or params or tags:
            client.log_batch(run_id, metrics, params, [entities.RunTag(*pair) for pair in tags.items()])
        if content.workloads:
            client.log_inputs(run_id, [_dataset(one) for one in content.workloads])
        if content.texts or content.files:
            with tempfile.TemporaryDirectory(prefix="repeak-") as place:
                stage(content, Path(place), self._redact)
                client.log_artifacts(run_id, place)

    def _problem(self, error: Exception) -> TrackerProblem:
        code = str(getattr(error, "error_code", ""))
        text = self._redact(" ".join(str(error).split()))[:400]
        said = f"MLflow at {self.store} did not take it: {text}"
        if code in _REFUSED:
            return TrackerProblem(said, "Nothing is lost: the journal has it.")
        hint = "Nothing is lost: the journal has it, and `repeak sync` sends it when the store is back."
        if isinstance(error, ImportError):
            hint = "Install the database's driver beside repeak; for PostgreSQL it is psycopg[binary]."
        elif code in ("UNAUTHENTICATED", "PERMISSION_DENIED", "CUSTOMER_UNAUTHORIZED"):
            hint = "Set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
        elif "out-of-date database schema" in text:
            hint = "Copy the database, then run `mlflow db upgrade` with its URI."
        return TrackerProblem(said, hint, outage=True)


def _create(client: MlflowClient, experiment_id: str, content: RunContent, parent: str = "") -> str:
    tags = {**content.tags, "mlflow.source.name": "repeak", "mlflow.source.type": "LOCAL"}
    tags |= {"mlflow.parentRunId": parent} if parent else {}
    run = client.create_run(experiment_id, start_time=content.started_ms, tags=tags, run_name=content.name)
    return str(run.info.run_id)


def _search(client: MlflowClient, experiment_id: str, tag: str, value: str) -> list[Run]:
    """Every run with this tag, deleted ones too: what a person deleted is not written again."""
    found: list[Run] = []
    token: str | None = ""
    while token is not None:
        page = client.search_runs(
            [experiment_id],
            filter_string=f"tags.`{tag}` = '{value}'",
            run_view_type=3,
            page_token=token or None,
        )
        found += page
        token = page.token or None
    return found


def _dataset(workload: WorkloadRef) -> DatasetInput:
    """The workload as MLflow's input: 36 characters of its hash are the digest, the source has all of it."""
    from mlflow import entities  # noqa: PLC0415 - as above

    data = entities.Dataset(workload.name, workload.sha256[:36], "repeak", workload.model_dump_json())
    return entities.DatasetInput(data, [entities.InputTag("mlflow.data.context", "tuning")])


def _whole(run: Run) -> bool:
    return bool(run.info.status != "RUNNING" or run.info.lifecycle_stage == "deleted")


def _errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    return MlflowException, SQLAlchemyError, OSError, ImportError


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """MLflow's log lines and warnings stay out of ours: what goes wrong comes as an exception."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow  # noqa: F401, PLC0415 - it sets its loggers up, so it comes before they are hushed

        loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
