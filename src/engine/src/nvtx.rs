//! Ranges and names of threads for profilers: the half of NVTX that a program has. A profiler names a library in
//! `NVTX_INJECTION64_PATH`, which is loaded at the first range and puts its functions into tables that it asks for; without
//! one a range costs a load and a branch.
//!
//! Own code, because the crate `nvtx` takes more than it gives: version 2.0 makes its bindings whenever it is built, with 16 more
//! crates and libclang, which not every machine that builds this has; version 1.3, the last one of its former author, makes two
//! strings on the heap for each range, also where there is no profiler.
//!
//! `unsafe` is allowed here: it calls the profiler's functions by the types that NVTX gives them.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Names the profiler's library.
const INJECTION: &str = "NVTX_INJECTION64_PATH";

/// Functions of each module of NVTX's interface, the unused number 0 included: none, CORE, CUDA, OPENCL, CUDART, CORE2, SYNC.
/// Profilers expect all modules; only CORE is called from here.
const FUNCTIONS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MAX_FUNCTIONS: usize = 16;
const CORE: usize = 1;
/// Numbers of functions in CORE.
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;
const NAME_THREAD: usize = 14;

type FunctionPointer = AtomicPtr<c_void>;
/// Addresses of slots, as the profiler sees them: nothing, one for each function, nothing.
type Table = [*const FunctionPointer; MAX_FUNCTIONS + 1];

/// Where the profiler puts its functions.
static POINTERS: [[FunctionPointer; MAX_FUNCTIONS]; FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_FUNCTIONS] }; FUNCTIONS.len()];

struct Tables([Table; FUNCTIONS.len()]);

// SAFETY: the addresses are those of statics of atomics, and never change.
unsafe impl Sync for Tables {}

static TABLES: Tables = {
    let mut tables = [[std::ptr::null(); MAX_FUNCTIONS + 1]; FUNCTIONS.len()];
    let mut module = 0;
    while module < FUNCTIONS.len() {
        let mut function = 1;
        while function < FUNCTIONS[module] {
            tables[module][function] = &raw const POINTERS[module][function];
            function += 1;
        }
        module += 1;
    }
    Tables(tables)
};

/// NVTX's table of callbacks.
#[repr(C)]
struct Callbacks {
    bytes: usize,
    module_table: extern "C" fn(c_uint, *mut *const *const FunctionPointer, *mut c_uint) -> c_int,
}

/// NVTX's table of versions.
#[repr(C)]
struct Version {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), module_table };
static VERSION: Version =
    Version { bytes: size_of::<Version>(), version: 3, reserved: 0, set_injection_version: ignore_version };

extern "C" fn ignore_version(_: u32) {}

extern "C" fn module_table(module: c_uint, table: *mut *const *const FunctionPointer, size: *mut c_uint) -> c_int {
    let Some(functions) = FUNCTIONS.get(module as usize).copied().filter(|&n| n > 0) else { return 0 };
    // SAFETY: NVTX lets the profiler pass null for what it doesn't want; else the pointers are good to write.
    unsafe {
        if !table.is_null() {
            *table = TABLES.0[module as usize].as_ptr();
        }
        if !size.is_null() {
            *size = functions as c_uint;
        }
    }
    1
}

extern "C" fn export_table(which: u32) -> *const c_void {
    match which {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION).cast(),
        _ => std::ptr::null(),
    }
}

type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type NameThread = unsafe extern "C" fn(u32, *const c_char);

/// What the profiler gave.
#[derive(Clone, Copy)]
struct Profiler {
    ranges: Option<(Push, Pop)>,
    name_thread: Option<NameThread>,
}

fn profiler() -> Option<Profiler> {
    static PROFILER: OnceLock<Option<Profiler>> = OnceLock::new();
    *PROFILER.get_or_init(attach)
}

fn attach() -> Option<Profiler> {
    let path = std::env::var_os(INJECTION).filter(|path| !path.is_empty())?;
    // SAFETY: whoever sets the variable wants the library's code to run in this process.
    let library = match unsafe { libloading::Library::new(&path) } {
        Ok(library) => library,
        Err(e) => {
            tracing::warn!("{INJECTION}: can't load {}: {e}", path.display());
            return None;
        }
    };
    // SAFETY: NVTX gives the function of this name this type.
    let started = match unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") } {
        // SAFETY: as above; the tables that it may ask for are statics.
        Ok(initialize) => unsafe { initialize(export_table) != 0 },
        Err(_) => false,
    };
    if !started {
        return None;
    }
    // Its functions are called until the process ends.
    std::mem::forget(library);
    let function = |n: usize| {
        let function = POINTERS[CORE][n].load(Ordering::Acquire);
        (!function.is_null()).then_some(function)
    };
    // SAFETY: the profiler puts functions of NVTX's types into the slots with their numbers.
    unsafe {
        let push = function(RANGE_PUSH).map(|f| std::mem::transmute::<*mut c_void, Push>(f));
        let pop = function(RANGE_POP).map(|f| std::mem::transmute::<*mut c_void, Pop>(f));
        let name_thread = function(NAME_THREAD).map(|f| std::mem::transmute::<*mut c_void, NameThread>(f));
        Some(Profiler { ranges: push.zip(pop), name_thread })
    }
}

/// A stage of the calling thread's work, from its making to its end.
pub(crate) struct Range {
    pop: Option<Pop>,
    /// Ranges begin and end on the same thread.
    here: PhantomData<*const ()>,
}

/// Begins a range.
pub(crate) fn range(name: &'static CStr) -> Range {
    let pop = profiler().and_then(|p| p.ranges).map(|(push, pop)| {
        // SAFETY: NVTX's type; the name ends with a NUL.
        unsafe { push(name.as_ptr()) };
        pop
    });
    Range { pop, here: PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(pop) = self.pop {
            // SAFETY: NVTX's type; the range was pushed on this thread, for the type isn't Send.
            unsafe { pop() };
        }
    }
}

/// Tells the profiler the calling thread's name.
pub(crate) fn name_thread(name: &str) {
    if let Some(name_thread) = profiler().and_then(|p| p.name_thread)
        && let Ok(name) = CString::new(name)
    {
        // SAFETY: asks for a number, and NVTX's type; the name ends with a NUL.
        unsafe { name_thread(libc::syscall(libc::SYS_gettid) as u32, name.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profiler_finds_a_slot_for_every_function() {
        let mut seen = std::collections::HashSet::new();
        for (module, &functions) in FUNCTIONS.iter().enumerate().skip(1) {
            let (mut table, mut size) = (std::ptr::null(), 0);
            assert_eq!(module_table(module as c_uint, &raw mut table, &raw mut size), 1);
            assert_eq!(size as usize, functions);
            // SAFETY: the table has `size` entries and one more.
            let entries = unsafe { std::slice::from_raw_parts(table, functions + 1) };
            assert!(entries[0].is_null() && entries[functions].is_null());
            assert!(entries[1..functions].iter().all(|&slot| !slot.is_null() && seen.insert(slot)));
        }
        assert_eq!(module_table(0, std::ptr::null_mut(), std::ptr::null_mut()), 0);
        assert_eq!(module_table(7, std::ptr::null_mut(), std::ptr::null_mut()), 0);
    }
}
