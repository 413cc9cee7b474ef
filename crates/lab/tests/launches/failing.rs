//! A device that fails at one call: what a measurement recorded, compiled and took is given back, whichever call that is.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use tare_cuda::CudaBackend;
use tare_cuda::device::{Address, Device, Edge, GraphId, KernelId, Launch, Taken, TileMap, Tiled, failed};
use tare_cuda::units::Unit;
use tare_lab::LabError;
use tare_lab::replay::launches::LaunchReplaying;
use tare_lab::sensitivity::Probe;
use tare_lab::specimen::{Phase, Specimen};
use tare_lab::tap::Tap;
use tare_ops::{Executable, IsaSet, OpError};

use crate::Scene;
use crate::emulator::Emulator;

/// What the device holds, and when it fails.
#[derive(Debug, Default)]
struct State {
    /// Launches do nothing any more: what they left stays as it is, and so do the answers.
    frozen: bool,
    /// Calls before the one that fails.
    left: Option<usize>,
    graphs: BTreeSet<usize>,
    memory: BTreeSet<u64>,
}

#[derive(Clone, Default)]
struct Watched(Arc<Mutex<State>>);

impl Watched {
    fn now(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

struct Failing {
    inner: Emulator,
    watched: Watched,
}

impl Failing {
    fn call(&self, what: &str) -> Result<(), OpError> {
        match &mut self.watched.now().left {
            Some(0) => return Err(failed(what, "a planted fault")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }
}

impl Device for Failing {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn isa(&self) -> IsaSet {
        self.inner.isa()
    }
    fn multiprocessors(&self) -> u32 {
        self.inner.multiprocessors()
    }
    fn alloc(&mut self, what: &str, bytes: usize) -> Result<Address, OpError> {
        self.call("alloc")?;
        let at = self.inner.alloc(what, bytes)?;
        self.watched.now().memory.insert(at.0);
        Ok(at)
    }
    fn free(&mut self, at: Address) {
        self.watched.now().memory.remove(&at.0);
        self.inner.free(at);
    }
    fn fill(&mut self, at: Address, bytes: usize, value: u8) -> Result<(), OpError> {
        self.call("fill")?;
        self.inner.fill(at, bytes, value)
    }
    fn upload(&mut self, at: Address, bytes: &[u8]) -> Result<(), OpError> {
        self.call("upload")?;
        self.inner.upload(at, bytes)
    }
    fn download(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), OpError> {
        self.call("download")?;
        self.inner.download(at, bytes)
    }
    fn kernel(&mut self, unit: &Unit, name: &str) -> Result<KernelId, OpError> {
        self.call("kernel")?;
        self.inner.kernel(unit, name)
    }
    fn tile_map(&mut self, matrix: Tiled) -> Result<TileMap, OpError> {
        self.call("tile_map")?;
        self.inner.tile_map(matrix)
    }
    fn launch(&mut self, launch: &Launch) -> Result<(), OpError> {
        self.call("launch")?;
        let frozen = self.watched.now().frozen;
        if frozen { Ok(()) } else { self.inner.launch(launch) }
    }
    fn record(&mut self, launches: &[Launch]) -> Result<GraphId, OpError> {
        self.call("record")?;
        let graph = self.inner.record(launches)?;
        self.watched.now().graphs.insert(graph.0);
        Ok(graph)
    }
    fn replay(&mut self, graph: GraphId) -> Result<(), OpError> {
        self.call("replay")?;
        let frozen = self.watched.now().frozen;
        if frozen { Ok(()) } else { self.inner.replay(graph) }
    }
    fn forget(&mut self, graph: GraphId) {
        assert!(self.watched.now().graphs.remove(&graph.0), "a recording is forgotten once");
        self.inner.forget(graph);
    }
    fn tick(&mut self, edge: Edge) -> Result<(), OpError> {
        self.call("tick")?;
        self.inner.tick(edge)
    }
    fn finish(&mut self) -> Result<(), OpError> {
        self.call("finish")?;
        self.inner.finish()
    }
    fn ticked_ns(&mut self) -> Result<Option<u64>, OpError> {
        self.call("ticked_ns")?;
        self.inner.ticked_ns()
    }
    fn memory(&self) -> Taken {
        self.inner.memory()
    }
}

/// Handles of executables that are looked for.
const HANDLES: u32 = 1 << 13;

#[test]
fn what_a_measurement_holds_is_given_back_whichever_call_fails() {
    let (scene, watched) = (Scene::new(), Watched::default());
    let rig = scene.rig("bf16", None);
    let tap = Tap::new(CudaBackend::new(Failing { inner: Emulator::default(), watched: watched.clone() }), None);
    let specimen = Specimen::of(tap, &rig, &scene.request, Phase::Decode).unwrap();
    // What belongs to the step itself is recorded when it runs again.
    specimen.confirm(specimen.exe).unwrap();
    specimen.confirm(specimen.exe).unwrap();
    watched.now().frozen = true;
    let held = || {
        let known = |b: &CudaBackend<Failing>| (0..HANDLES).filter(|id| b.launches(Executable(*id)).is_ok()).count();
        (watched.now().graphs.len(), specimen.tap().with(|b| known(b)))
    };
    let (before, memory) = (held(), watched.now().memory.len());
    let probe = Probe { group: "down", group_ns: 4e5, blocks: 1, first_dose: 0, seed: 3 };
    let (request, ceilings) = (&scene.request, &scene.ceilings);
    let apart = LaunchReplaying { rig: &rig, request, phase: Phase::Decode, iterations: 1, ceilings };
    type Measure<'a> = &'a dyn Fn(&mut dyn FnMut() -> bool) -> Result<(), LabError>;
    let measures: [(&str, Measure<'_>); 2] = [
        ("probe", &|go_on| probe.run(&specimen, Phase::Decode, &mut |_| go_on()).map(drop)),
        ("replay", &|go_on| apart.of(&specimen, &mut |_| go_on()).map(drop)),
    ];
    for (what, measure) in measures {
        let holds_nothing = |when: String| {
            assert_eq!(held(), before, "{what} {when}: recordings and executables");
            // One number counts what delays take, for as long as the backend lives.
            assert!(watched.now().memory.len() <= memory + 1, "{what} {when}: memory");
        };
        for n in 0.. {
            watched.now().left = Some(n);
            let ended = measure(&mut || true);
            watched.now().left = None;
            holds_nothing(format!("with a fault at call {n}"));
            match ended {
                Ok(()) => {
                    assert!(n > 20, "{what}: {n} calls");
                    break;
                }
                Err(e) => assert!(e.to_string().contains("a planted fault"), "{what}, call {n}: {e}"),
            }
        }
        for n in 0.. {
            let mut asked = 0;
            let ended = measure(&mut || {
                asked += 1;
                asked <= n
            });
            holds_nothing(format!("told to stop at question {n}"));
            match ended {
                Ok(()) => {
                    assert!(n > 0, "{what} asks");
                    break;
                }
                Err(e) => assert!(matches!(e, LabError::Interrupted), "{what}, question {n}: {e}"),
            }
        }
    }
}
