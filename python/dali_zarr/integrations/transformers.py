# Transformers isn't installed where this is checked, and the checker takes this module for it.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUntypedBaseClass=false, reportGeneralTypeIssues=false
"""The ``Trainer`` of Hugging Face's Transformers, whose data sets may be stores.

Its loop stays as it is: epochs, accumulated gradients, evaluation, checkpoints. Its ``TrainingArguments`` say the batch size, the
order, the seed and the device, as for other data sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.state import GradientState, PartialState
from transformers import Trainer as TheirTrainer
from transformers.data import data_collator as collators

from ..torch import Batch, Loader

# What TrainingArguments say, by the loader's name.
_SAID = {
    "batch_size": "per_device_train_batch_size and per_device_eval_batch_size", "device": "use_cpu, or the launcher",
    "random_shuffle": 'train_sampling_strategy="random" or "sequential"', "seed": "data_seed or seed",
    "drop_last": "dataloader_drop_last",
}


class Data:
    """A data set of the trainer: arguments of :class:`dali_zarr.torch.Loader`, without those that ``TrainingArguments`` have.

    An entry of a batch is an argument of the model, so outputs have the names that the model expects.
    """

    def __init__(self, path: Any = None, **arguments: Any):
        """Looks at the store.

        Args:
            path: As of the loader.
            arguments: As of the loader, such as ``arrays={"pixel_values": "t2m"}``, ``window`` and ``sel``.

        Raises:
            ValueError: ``TrainingArguments`` have an argument, or the loader refuses one.
        """
        for name in _SAID.keys() & arguments.keys():
            raise ValueError(f"dali_zarr: transformers: {name}: expected it in TrainingArguments, as {_SAID[name]}")
        self.arguments = arguments if path is None else {"path": path} | arguments
        self._length = len(Loader(**self.arguments, device="cpu", shard_id=0, num_shards=1))

    def __len__(self) -> int:
        """The number of samples."""
        return self._length


class _EvaluationLoader(Loader):
    """Tells Accelerate how many samples the last batch has, so that the mean of losses counts each sample once. With several ranks
    Accelerate can't be told: it would cut samples from the end of the last rank."""

    def __iter__(self) -> Iterator[Batch]:
        state: Any = GradientState()
        for batch in super().__iter__():
            if PartialState().num_processes == 1 and state.active_dataloader is not None and batch.index is not None:
                state.active_dataloader.remainder = len(batch.index)
            yield batch


class Trainer(TheirTrainer):
    """In the place of ``transformers.Trainer``: ``train_dataset``, ``eval_dataset`` (also in a dictionary), and the data set of
    ``evaluate`` and ``predict`` may be :class:`Data`. Others are read as before.

    ::

        from dali_zarr.integrations.transformers import Data, Trainer

        data = Data("era5.zarr", arrays={"pixel_values": "t2m", "labels": "z"})
        Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=8), train_dataset=data).train()
    """

    def get_train_dataloader(self) -> Any:
        """Returns the loader of training, or what ``transformers.Trainer`` returns."""
        own: Any = self
        if not isinstance(own.train_dataset, Data):
            return super().get_train_dataloader()
        strategy = str(own.args.train_sampling_strategy)
        if strategy not in ("random", "sequential"):
            raise ValueError(
                f'dali_zarr: transformers: train_sampling_strategy: expected "random" or "sequential", but found {strategy!r}: '
                "samples of a store have one length; for ragged ones give a sampler to a Loader"
            )
        return self._loader(Loader, own.train_dataset, own._train_batch_size, random_shuffle=strategy == "random")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Returns the loader of evaluation, or what ``transformers.Trainer`` returns."""
        own: Any = self
        found = own.eval_dataset if eval_dataset is None else eval_dataset
        found = own.eval_dataset[found] if isinstance(found, str) else found
        if not isinstance(found, Data):
            return super().get_eval_dataloader(eval_dataset)
        return self._loader(_EvaluationLoader, found, own.args.eval_batch_size)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Returns the loader of ``predict``, or what ``transformers.Trainer`` returns."""
        own: Any = self
        if not isinstance(test_dataset, Data):
            return super().get_test_dataloader(test_dataset)
        return self._loader(_EvaluationLoader, test_dataset, own.args.eval_batch_size)

    def _loader(self, kind: type[Loader], data: Data, batch_size: int, **order: Any) -> Loader:
        own: Any = self
        collator = own.data_collator
        if collator is not collators.default_data_collator and not isinstance(collator, collators.DataCollatorWithPadding):
            raise ValueError(
                f"dali_zarr: transformers: data_collator: expected none, but found {collator!r}: the reader makes whole batches; "
                "give the loader's transform instead"
            )
        if own.args.accelerator_config.split_batches:
            raise ValueError("dali_zarr: transformers: split_batches: expected False, but found True: ranks read their own batches")
        seed = own.args.seed if own.args.data_seed is None else own.args.data_seed
        how: dict[str, Any] = {"batch_size": batch_size, "drop_last": own.args.dataloader_drop_last, "device": str(own.args.device)}
        return kind(**data.arguments | order, seed=seed, **how)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Leaves out entries that the model doesn't take, as ``remove_unused_columns`` does for other data sets."""
        own: Any = self
        if isinstance(inputs, Batch) and own.args.remove_unused_columns:
            own._set_signature_columns_if_needed()
            inputs = {name: values for name, values in inputs.items() if name in own._signature_columns}
        prepared: Any = super()
        return prepared._prepare_inputs(inputs)
