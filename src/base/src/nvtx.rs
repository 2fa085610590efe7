//! Reports ranges and the names of threads to profilers: the program's half of NVTX. A profiler puts the path of its
//! library into `NVTX_INJECTION64_PATH`. The library is loaded at the first range. It asks for NVTX's tables and writes
//! its functions into them. Without a profiler, a range costs a load and a branch.
//!
//! Why not the crate `nvtx`: version 2.0 generates its bindings at every build, which takes 16 more crates and
//! libclang, and not every build machine has libclang. Version 1.3, the last one of its former author, allocates two
//! strings for each range, even without a profiler.
//!
//! `unsafe` is allowed here: the code calls the profiler's functions with the types that NVTX defines.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The environment variable with the path of the profiler's library.
const INJECTION: &str = "NVTX_INJECTION64_PATH";

/// Number of functions in each module of NVTX's interface, with the unused number 0: none, CORE, CUDA, OPENCL, CUDART,
/// CORE2, SYNC. Profilers expect all modules; only functions of CORE are called from here.
const FUNCTIONS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MAX_FUNCTIONS: usize = 16;
const CORE: usize = 1;
/// Indices of functions in the table of CORE.
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;
const NAME_THREAD: usize = 14;

type FunctionPointer = AtomicPtr<c_void>;
/// One module's table as the profiler sees it: null, then the address of a slot for each function, then null.
type Table = [*const FunctionPointer; MAX_FUNCTIONS + 1];

/// The slots. The profiler writes its functions here.
static POINTERS: [[FunctionPointer; MAX_FUNCTIONS]; FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_FUNCTIONS] }; FUNCTIONS.len()];

struct Tables([Table; FUNCTIONS.len()]);

// SAFETY: the addresses point to static atomics, and never change.
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
    // SAFETY: NVTX lets the profiler pass null for a result that it doesn't want; other pointers are good to write.
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

/// The profiler's functions that are called from here; `None` if the profiler doesn't provide them.
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
    // SAFETY: NVTX defines this type for the function of this name.
    let started = match unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") } {
        // SAFETY: as above; the tables that it may ask for are statics.
        Ok(initialize) => unsafe { initialize(export_table) != 0 },
        Err(_) => false,
    };
    if !started {
        return None;
    }
    // The library stays loaded: its functions are called until the process ends.
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

/// A range: a stage of the calling thread's work. It ends when this value is dropped.
pub struct Range {
    pop: Option<Pop>,
    /// Keeps the type from being `Send`: a range must end on the thread where it began.
    here: PhantomData<*const ()>,
}

/// Begins a range with this name.
pub fn range(name: &'static CStr) -> Range {
    let pop = profiler().and_then(|p| p.ranges).map(|(push, pop)| {
        // SAFETY: the function has NVTX's type, and the name ends with a NUL.
        unsafe { push(name.as_ptr()) };
        pop
    });
    Range { pop, here: PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(pop) = self.pop {
            // SAFETY: the function has NVTX's type, and the range was pushed on this thread, because `Range` isn't
            // `Send`.
            unsafe { pop() };
        }
    }
}

/// Tells the profiler the calling thread's name.
pub fn name_thread(name: &str) {
    if let Some(name_thread) = profiler().and_then(|p| p.name_thread)
        && let Ok(name) = CString::new(name)
    {
        // SAFETY: the system call only returns a number; the function has NVTX's type, and the name ends with a NUL.
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
