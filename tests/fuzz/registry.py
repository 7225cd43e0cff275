"""The targets by name."""

from . import (
    archive,
    document,
    header,
    identity,
    messages,
    names,
    page_file,
    planes,
    prompts,
    restored,
    settings,
    values,
)
from .target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        archive.TARGET,
        header.TARGET,
        page_file.TARGET,
        planes.TARGET,
        document.TARGET,
        names.TARGET,
        messages.REQUEST,
        messages.REPLY,
        identity.TARGET,
        restored.TARGET,
        settings.TARGET,
        prompts.TARGET,
        *values.TARGETS,
    )
}
