//! NVIDIA's run-time compiler, loaded when it is needed: CUDA C++ to machine code of one architecture.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;

use libloading::Library;

/// Names under which the library is looked for, the newest first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so", "libnvrtc.so.12"];

/// The second part of the library, by the name under which it is looked for.
const BUILTINS: &str = "libnvrtc-builtins.so.13.0";

/// What every unit is compiled with. Each operation is rounded once, as the reference rounds: nothing is fused that the
/// source does not fuse, divisions and roots are exact to the last bit, and denormal numbers are kept.
pub const OPTIONS: [&str; 7] = [
    "-std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "-lineinfo",
    "-diag-suppress=177",
];

/// What the compiler made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code of one architecture.
    pub cubin: Vec<u8>,
    /// What the compiler and its assembler had to say; empty as a rule.
    pub log: String,
}

/// The library's `nvrtcResult`: 0 is success.
type Code = c_int;
type Program = *mut c_void;

/// The compiler.
pub struct Nvrtc {
    library: Library,
    _builtins: Option<Library>,
    version: (i32, i32),
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nvrtc({}.{})", self.version.0, self.version.1)
    }
}

impl Nvrtc {
    /// Loads the library from the loader's path.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn find() -> Result<Self, String> {
        let mut last = String::new();
        for name in NAMES {
            match Self::at(Path::new(name)) {
                Ok(found) => return Ok(found),
                Err(why) => last = why,
            }
        }
        Err(format!("NVIDIA's run-time compiler is not on the loader's path ({}): {last}", NAMES.join(", ")))
    }

    /// Loads the library from a file.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn at(path: &Path) -> Result<Self, String> {
        let parts = path.parent().filter(|p| !p.as_os_str().is_empty()).map(|folder| folder.join(BUILTINS));
        // SAFETY: NVRTC's initialisers touch nothing of ours.
        let load = |path: &Path| unsafe { Library::new(path) };
        // A library that was named by its folder finds its second part only when that is loaded already.
        let builtins = parts.filter(|p| p.exists()).map(|p| load(&p)).transpose().map_err(|e| e.to_string())?;
        let library = load(path).map_err(|e| e.to_string())?;
        let mut found = Self { library, _builtins: builtins, version: (0, 0) };
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code = found.symbol(c"nvrtcVersion")?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to integers of ours.
        let code = unsafe { version(&raw mut major, &raw mut minor) };
        found.expect(code, "nvrtcVersion")?;
        found.version = (major, minor);
        Ok(found)
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles `text` for `arch` (`sm_90a`) to a cubin. Several threads may compile at once.
    ///
    /// # Errors
    /// The compiler's own words.
    pub fn compile(&self, name: &str, text: &str, arch: &str) -> Result<Compiled, String> {
        let program = self.create(name, text)?;
        let made = self.compile_program(program, arch).and_then(|()| self.cubin(program));
        let made = made.map(|cubin| Compiled { cubin, log: self.log(program).trim().to_string() });
        let destroy: unsafe extern "C" fn(*mut Program) -> Code = self.symbol(c"nvrtcDestroyProgram")?;
        let mut program = program;
        // SAFETY: the program was created above and is used no more.
        unsafe { destroy(&raw mut program) };
        made
    }

    fn create(&self, name: &str, text: &str) -> Result<Program, String> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> Code;
        let create: Create = self.symbol(c"nvrtcCreateProgram")?;
        let text = CString::new(text).map_err(|e| e.to_string())?;
        let name = CString::new(format!("{name}.cu")).map_err(|e| e.to_string())?;
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: two texts that end in zero and live through the call, and no headers.
        let code = unsafe { create(&raw mut program, text.as_ptr(), name.as_ptr(), 0, none, none) };
        self.expect(code, "nvrtcCreateProgram")?;
        Ok(program)
    }

    fn compile_program(&self, program: Program, arch: &str) -> Result<(), String> {
        let compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code =
            self.symbol(c"nvrtcCompileProgram")?;
        let target = format!("--gpu-architecture={arch}");
        let options: Vec<CString> = OPTIONS
            .into_iter()
            .chain([target.as_str()])
            .map(|o| CString::new(o).map_err(|e| e.to_string()))
            .collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        // SAFETY: a live program and as many texts as are counted.
        let code = unsafe { compile(program, pointers.len() as c_int, pointers.as_ptr()) };
        self.expect(code, "nvrtcCompileProgram").map_err(|e| format!("{e}\n{}", self.log(program)))
    }

    fn log(&self, program: Program) -> String {
        let log = self.bytes(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog").unwrap_or_default();
        CStr::from_bytes_until_nul(&log).map_or_else(|_| String::new(), |s| s.to_string_lossy().into_owned())
    }

    fn cubin(&self, program: Program) -> Result<Vec<u8>, String> {
        self.bytes(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN")
    }

    /// Bytes of a program: how many, and which.
    fn bytes(&self, program: Program, size: &CStr, get: &CStr) -> Result<Vec<u8>, String> {
        let ask: unsafe extern "C" fn(Program, *mut usize) -> Code = self.symbol(size)?;
        let get_bytes: unsafe extern "C" fn(Program, *mut c_char) -> Code = self.symbol(get)?;
        let mut n = 0;
        // SAFETY: a live program and a number of ours.
        let code = unsafe { ask(program, &raw mut n) };
        self.expect(code, &size.to_string_lossy())?;
        let mut bytes = vec![0u8; n];
        // SAFETY: as many bytes as the library said it writes.
        let code = unsafe { get_bytes(program, bytes.as_mut_ptr().cast()) };
        self.expect(code, &get.to_string_lossy())?;
        Ok(bytes)
    }

    fn symbol<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        // SAFETY: each caller names the type that NVRTC's header declares, which has not changed since version 11.
        let found = unsafe { self.library.get::<F>(name.to_bytes_with_nul()) };
        found.map(|f| *f).map_err(|e| e.to_string())
    }

    fn expect(&self, code: Code, call: &str) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let say: Result<unsafe extern "C" fn(Code) -> *const c_char, _> = self.symbol(c"nvrtcGetErrorString");
        // SAFETY: the library answers any code with a text of its own.
        let text = say.map(|say| unsafe { CStr::from_ptr(say(code)) }.to_string_lossy().into_owned());
        Err(format!("{call}: {}", text.unwrap_or_else(|_| format!("code {code}"))))
    }
}
