//! Threads of a launch stand in the backend, the most that a kernel takes in its text: every launch on the host that stands in
//! for a device is held against its kernel's.

use tare_cuda::device::{Device, Launch};
use tare_cuda::units::Unit;

use crate::emulator::{Emulator, most_threads};

#[test]
fn every_kernel_declares_how_many_threads_it_takes() {
    for unit in Unit::all() {
        for kernel in unit.kernels {
            let most = most_threads(&unit, kernel).unwrap_or_else(|| panic!("{kernel} of {}", unit.name));
            assert!(most.is_multiple_of(32) && (32..=1024).contains(&most), "{kernel} of {}: {most}", unit.name);
        }
    }
}

#[test]
fn a_launch_of_more_threads_than_its_kernel_declares_is_refused() {
    let text = "
        #define SOME_THREADS 64
        struct Args { u32 nothing; };
        KERNEL(direct, Args, 32) {}
        #define MADE(name) KERNEL(name, Args, SOME_THREADS, 2) {}
        MADE(made)
    ";
    let text = [include_str!("../../kernels/tare.cuh"), text].concat();
    let unit = Unit { name: "bounds".into(), text, kernels: &["direct", "made"], hopper: false };
    let mut device = Emulator::default();
    for (name, most) in [("direct", 32), ("made", 64)] {
        let kernel = device.kernel(&unit, name).unwrap();
        let mut launch = |threads| {
            let args = vec![0; 4];
            device.launch(&Launch { kernel, key: name.into(), grid: (1, 1), threads, shared: 0, early: false, args })
        };
        launch(most).unwrap();
        let e = launch(most + 32).unwrap_err().to_string();
        assert!(
            e.contains(name) && e.contains(&format!("{} threads", most + 32)) && e.contains(&most.to_string()),
            "{e}"
        );
    }
}
