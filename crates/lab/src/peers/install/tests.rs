//! An install is whole or not there, and is only used where it was made, by the recipe that made it.

use super::*;

const SCRIPT: Entry = Entry {
    name: "script",
    version: "1",
    about: "",
    backend: "cpu",
    recipe: Recipe::Python { requirements: &[] },
    withheld: None,
    alone: None,
    sources: &[("shim.py", "print(1)\n")],
    candidates: &[],
    without: &[],
    fast_marks: &[],
    writes: &[],
};

/// Puts an install in place as `install` would, without running a step.
fn placed(entry: &Entry, home: &Path) -> Installed {
    let staging = Staging::make(entry, home).unwrap();
    let mut go_on = |_: &str, _: Duration| true;
    Work { doing: "installing", entry, folder: &staging.0, go_on: &mut go_on }.write_sources().unwrap();
    let shim = "shim.py";
    let done = Installed {
        name: entry.name.into(),
        version: entry.version.into(),
        seconds: 0.0,
        recipe_sha256: recipe_sha256(entry),
        processor: processor(entry),
        program: "python3".into(),
        arguments: vec![shim.into()],
        shim_sha256: file_sha256(&staging.0.join(shim)).unwrap(),
        folder: folder(entry, home),
    };
    staging.finish(&done).unwrap();
    done
}

fn why(reading: Reading<Installed>) -> String {
    match reading {
        Reading::Available(i) => panic!("{i:?} can be used"),
        Reading::Unavailable { why } => why,
    }
}

#[test]
fn what_is_there_is_found_again_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    assert!(why(found(&SCRIPT, home.path())).contains("tare peers install script"));
    let abandoned = home.path().join("peers/.parts/script.4194305");
    fs::create_dir_all(&abandoned).unwrap();
    let done = placed(&SCRIPT, home.path());
    assert_eq!(found(&SCRIPT, home.path()), Reading::Available(done));
    let parts = fs::read_dir(home.path().join("peers/.parts")).unwrap().count();
    let listed = Path::new("/proc/self").exists();
    assert_eq!(parts, usize::from(!listed), "nothing is left of this staging, nor of a killed process's");
}

#[test]
fn another_recipe_processor_or_shim_is_not_used() {
    let home = tempfile::tempdir().unwrap();
    let done = placed(&SCRIPT, home.path());
    let other = Entry { sources: &[("shim.py", "print(2)\n")], ..SCRIPT };
    assert!(why(found(&other, home.path())).contains("another recipe"));
    fs::write(done.folder.join("shim.py"), "print(3)\n").unwrap();
    assert!(why(found(&SCRIPT, home.path())).contains("not as it was installed"));
    let moved = Installed { processor: "another".into(), ..done.clone() };
    fs::write(done.folder.join(MANIFEST), serde_json::to_vec(&moved).unwrap()).unwrap();
    assert!(why(found(&SCRIPT, home.path())).contains("built for another"));
    fs::write(done.folder.join(MANIFEST), "{").unwrap();
    assert!(why(found(&SCRIPT, home.path())).contains("spoiled"));
}

#[test]
fn a_failed_or_interrupted_step_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let staging = Staging::make(&SCRIPT, home.path()).unwrap();
    let mut go_on = |_: &str, _: Duration| true;
    let mut work = Work { doing: "installing", entry: &SCRIPT, folder: &staging.0, go_on: &mut go_on };
    let failing = words("-c", &["echo the reason; exit 3"]);
    let error = work.run("failing", Path::new("sh"), &failing).unwrap_err().to_string();
    assert!(error.contains("failing") && error.contains("the reason"), "{error}");
    let missing = work.run("starting", Path::new("no-such-program"), &[]).unwrap_err().to_string();
    assert!(missing.contains("no-such-program"), "{missing}");

    // The step starts a process of its own and waits for it: both must be gone.
    let mark = staging.0.join("started");
    let mut until = |_: &str, _: Duration| !mark.exists();
    let mut work = Work { doing: "installing", entry: &SCRIPT, folder: &staging.0, go_on: &mut until };
    let waiting = words("-c", &["sleep 600 & echo $! > pid; mv pid started; wait"]);
    let error = work.run("waiting", Path::new("sh"), &waiting).unwrap_err();
    assert!(matches!(error, LabError::Interrupted), "{error}");
    let pid = fs::read_to_string(&mark).unwrap();
    let gone = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    let patience = Instant::now();
    while !gone(pid.trim()) {
        assert!(patience.elapsed() < Duration::from_secs(60), "process {pid} outlived its step");
        std::thread::sleep(GLANCE);
    }
    let path = staging.0.clone();
    drop(staging);
    assert!(!path.exists());
    assert!(!folder(&SCRIPT, home.path()).exists());
}

#[test]
fn a_peer_that_is_left_out_says_why() {
    let home = tempfile::tempdir().unwrap();
    let mlx = super::super::entry("mlx").unwrap();
    assert!(why(found(mlx, home.path())).contains("reference BLAS"));
    let error = install(mlx, home.path(), None, &mut |_, _| true).unwrap_err().to_string();
    assert!(error.contains("reference BLAS"), "{error}");
    let withheld = Entry { withheld: Some("not seen to pass"), ..SCRIPT };
    placed(&withheld, home.path());
    assert!(why(found(&withheld, home.path())).contains("not seen to pass"), "even when it is there");
    let error = install(&withheld, home.path(), None, &mut |_, _| true).unwrap_err().to_string();
    assert!(error.contains("not seen to pass"), "{error}");
}
