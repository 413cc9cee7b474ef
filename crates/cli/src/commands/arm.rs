//! `tare arm`: the process of one arm of a campaign. A campaign starts it; people have no use for it.

use anyhow::Result;
use std::io::{stdin, stdout};
use tare_lab::arm::{Home, serve};
use tare_probe::Host;

use crate::built::build_info;
use crate::settings::Settings;

/// Runs the command.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let home = Home {
        folder: settings.home.clone(),
        references: settings.references(),
        kernels: settings.kernels(),
        build: build_info()?,
        threads: Host::read().usable_threads,
    };
    Ok(serve(&home, stdin().lock(), stdout().lock())?)
}
