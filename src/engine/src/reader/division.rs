//! Divides the memory of a reader that isn't started, and asks [`route`](crate::route) about its arrays again: what the
//! division decides.

use std::sync::Arc;

use super::needs::{RoutedPart, needs, parts};
use super::opening::UnstartedReader;
use super::ordering::with_tables;
use super::routing::{self, Note};
use crate::budget::{self, Asked, Division, MachineMemory, Needs, Rates};
use crate::gpu::{self, driver};
use crate::route::{Decisions, Expected, Facts, Route, Why, decide};
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::shown;
use dali_zarr_samples::spec::Spec;

impl UnstartedReader {
    /// Divides the memory. If device memory holds so few chunks of an array that the CPU would decode them sooner than
    /// the GPU, the CPU decodes them, provided that the user left this to the reader.
    ///
    /// # Errors
    /// Those of [`budget::divide`].
    pub fn divide(&mut self, spec: &Spec, there: &MachineMemory) -> Result<Division> {
        let asked = Asked::of(spec);
        let division = budget::divide(&self.needs, &asked, there)?;
        if !division.is_accepted() {
            return Ok(division);
        }
        let decisions = self.with_memory(spec, &division, &asked, asked.threads);
        if decisions == self.chunk_index.decisions {
            return Ok(division);
        }
        let needs = self.needs_with(spec, &decisions)?;
        let on_cpu = budget::divide(&needs, &asked, there)?;
        // Host memory may hold chunks for fewer threads only.
        let host = &on_cpu.budget.host;
        let threads = host.threads.min(host.block / (needs.encoded + needs.host_decoded).max(1));
        let routes = |decisions: &Decisions| decisions.iter().flatten().map(|d| d.route).collect::<Vec<Route>>();
        let is_sooner = routes(&self.with_memory(spec, &division, &asked, threads)) == routes(&decisions);
        if !on_cpu.is_accepted() || !is_sooner {
            return Ok(division);
        }
        let notes = self.memory_notes(&decisions, &division, &asked);
        let Some(chunk_index) = Arc::get_mut(&mut self.chunk_index) else { return Ok(division) };
        chunk_index.decisions = decisions;
        self.notes.extend(notes);
        self.needs = needs;
        Ok(on_cpu)
    }

    /// Asks the GPU whether it has decoders for the images that are for it. If it lacks one, the arrays are decided about anew,
    /// so that the CPU decodes its images.
    ///
    /// # Errors
    /// If it lacks one, but the user asked for the GPU; or as [`needs`].
    pub fn ask_for_images(&mut self, spec: &Spec, device: &Arc<driver::Device>) -> Result<()> {
        let Some(chunk_index) = Arc::get_mut(&mut self.chunk_index) else { return Ok(()) };
        let on_gpu = parts(&chunk_index.dataset, &chunk_index.decisions).filter(|of| of.route == Route::Gpu);
        let formats: Vec<_> = on_gpu.filter_map(|of| of.part.format.chain.image_format()).collect();
        let missing: Vec<_> = gpu::IMAGE_FORMATS
            .into_iter()
            .filter(|format| formats.contains(format))
            .filter_map(|format| Some((format, gpu::images_available(device, format).err()?)))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        (chunk_index.decisions, self.notes) = routing::of_arrays(spec, &chunk_index.dataset, &missing)?;
        self.needs = self.needs_with(spec, &self.chunk_index.decisions)?;
        Ok(())
    }

    /// Returns what the reader needs with these decisions.
    ///
    /// # Errors
    /// As [`needs`].
    fn needs_with(&self, spec: &Spec, decisions: &Decisions) -> Result<Needs> {
        let needs = needs(spec, &self.chunk_index, decisions, &self.outputs, &mut self.order.clone())?;
        Ok(with_tables(needs, &self.chunk_index.planner, &self.order))
    }

    /// Decides about the parts of arrays again that the GPU would decode, with what this division and so many threads of the
    /// CPU are expected to give.
    fn with_memory(&self, spec: &Spec, division: &Division, asked: &Asked, threads: usize) -> Decisions {
        let mut decisions = self.chunk_index.decisions.clone();
        let reads_to_device = self.needs.device.is_some_and(|device| device.gds_buffer > 0);
        let Some(device) = division.budget.device.as_ref().filter(|_| !reads_to_device) else { return decisions };
        for RoutedPart { array, number, part, route } in parts(&self.chunk_index.dataset, &self.chunk_index.decisions) {
            let Some(chain) = part.format.gpu_chain().filter(|_| route == Route::Gpu) else { continue };
            let rates = Rates::of_chain(Some(chain));
            let time = rates.time(part.largest_bytes);
            let (gpu, cpu) = (device.rate(&self.needs, time), rates.on_cpu(threads));
            // It takes a search, and says nothing if the GPU is fast enough.
            let at_most = || budget::device::rate_at_most(&self.needs, asked.batches, time);
            let expected = Expected { gpu, cpu, gpu_at_most: if cpu > gpu { at_most() } else { gpu } };
            let asked = spec.resources.decode_device;
            decisions[array][number] = decide(&Facts { asked, expected: Some(expected), ..Facts::OF_GPU });
        }
        decisions
    }

    /// Returns a note for each part that the GPU would decode, but the CPU does because of this division.
    fn memory_notes(&self, decisions: &Decisions, division: &Division, asked: &Asked) -> Vec<Note> {
        let dataset = &self.chunk_index.dataset;
        let note = |RoutedPart { array, number, part, route }: RoutedPart<'_>| {
            let Why::DeviceMemory(expected) = decisions[array][number].why else { return None };
            if route != Route::Gpu {
                return None;
            }
            let limit = budget::device::limit_for_rate(&self.needs, asked.batches, expected.cpu);
            let text = format!(
                "store {}, array '{}': decoded on the CPU: device_memory_limit ({}) holds so few of its chunks that the GPU is \
                 expected to decode {:.1} GB/s, and the CPU's {} threads {:.1} GB/s; with {} or more the GPU decodes it",
                dataset.stores[part.store].location(),
                dataset.arrays[array].name,
                shown(division.limits.device),
                expected.gpu / 1e9,
                asked.threads,
                expected.cpu / 1e9,
                shown(limit)
            );
            Some(Note { array, part: number, text })
        };
        parts(dataset, &self.chunk_index.decisions).filter_map(note).collect()
    }
}
