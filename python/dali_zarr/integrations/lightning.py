"""A ready ``LightningDataModule``: loaders for training, validation and test of one store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._selection.splits import splits
from ..torch import Loader

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule
else:
    try:
        from lightning.pytorch import LightningDataModule
    except ImportError:
        # The same framework by its older name. A trainer takes only data modules of its own package.
        from pytorch_lightning import LightningDataModule

# The part that each stage of the trainer needs.
_NEEDED = {"fit": "train", "validate": "validation", "test": "test", "predict": "test"}


class DataModule(LightningDataModule):
    """Loaders of the parts of a data set, on the trainer's device.

    ::

        from dali_zarr.integrations.lightning import DataModule

        data = DataModule(path="era5.zarr", arrays=["t2m"], offsets={"input": 0, "target": 6}, batch_size=16,
                          random_shuffle=True, train=slice(None, "2016"), validation="2017", test=slice("2018", None))
        trainer.fit(model, data)

    Lightning's checkpoints have the states of the loaders: training goes on in mid-epoch. Ranks divide the samples by themselves.
    """

    def __init__(
        self, *, train: Any = None, validation: Any = None, test: Any = None, evaluation: dict[str, Any] | None = None,
        **arguments: Any,
    ):
        """Looks at the store; loaders are made when the trainer asks for them.

        Args:
            train, validation, test: What belongs to each part, as of :func:`dali_zarr.splits`. Only ``train`` is shuffled. Parts
                that aren't given have no loader.
            evaluation: Arguments of the loaders of validation and test that differ, such as ``batch_size`` or ``uneven``.
            arguments: The other arguments of :func:`dali_zarr.splits` and :class:`dali_zarr.torch.Loader`, such as ``path``,
                ``arrays`` and ``batch_size``. Without ``device`` batches come to the device of the trainer.

        Raises:
            TypeError, ValueError: As of :func:`dali_zarr.splits`.
        """
        super().__init__()
        self._parts = splits(train=train, validation=validation, test=test, **arguments)
        for name in self._parts.keys() - {"train"}:
            self._parts[name] |= evaluation or {}
        self._made: dict[str, Loader] = {}

    def setup(self, stage: str | None = None) -> None:
        """Checks that the part is there that a stage of the trainer needs. ``fit`` does without validation.

        Raises:
            ValueError: It isn't.
        """
        name = str(getattr(stage, "value", stage))
        part = _NEEDED.get(name)
        if part is not None and part not in self._parts:
            raise ValueError(
                f"dali_zarr: lightning: expected {part} for the stage {name!r}, but the data module has {', '.join(self._parts)}; "
                f"give {part}=..."
            )

    def train_dataloader(self) -> Any:
        """Returns the loader of ``train``, the same one each time."""
        return self._loader("train")

    def val_dataloader(self) -> Any:
        """Returns the loader of ``validation``, or an empty list."""
        return self._loader("validation")

    def test_dataloader(self) -> Any:
        """Returns the loader of ``test``, or an empty list."""
        return self._loader("test")

    def predict_dataloader(self) -> Any:
        """Returns the loader of ``test``, or an empty list."""
        return self._loader("test")

    def _loader(self, name: str) -> Any:
        if name not in self._parts:
            return []
        if name not in self._made:
            trainer: Any = self.trainer
            told: dict[str, Any] = {} if trainer is None else {"device": trainer.strategy.root_device}
            self._made[name] = Loader(**told | self._parts[name])
        return self._made[name]
