//! What the figures were measured on.

use std::{fs, process::Command};

use anyhow::{Context, bail};
use serde::Serialize;

/// The machine, in the words of its kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the first processor.
    pub cpu: String,
    /// Processors this process may run on.
    pub cores: usize,
    /// Vector extensions that the engine has paths for.
    pub isa: Vec<String>,
    /// Caches of the first processor, level and size.
    pub caches: Vec<String>,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Kernel release.
    pub kernel: String,
    /// Load average over one minute when the benchmark started.
    pub load: f64,
}

/// Reads the machine's description from `/proc` and `/sys`; what cannot be read is left empty.
pub fn describe() -> Machine {
    let cpuinfo = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo
            .lines()
            .find(|l| l.split(':').next().is_some_and(|k| k.trim() == name));
        line.and_then(|l| l.split_once(':'))
            .map(|(_, v)| v.trim().to_owned())
            .unwrap_or_default()
    };
    let flags = field("flags");
    let known = [
        "avx2",
        "fma",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "amx_bf16",
        "amx_int8",
    ];
    let isa = known.iter().filter(|k| flags.split(' ').any(|f| f == **k));
    let kib = read("/proc/meminfo")
        .lines()
        .find_map(|l| {
            l.strip_prefix("MemTotal:")?
                .trim()
                .strip_suffix("kB")?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0.0_f64);
    Machine {
        cpu: field("model name"),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        isa: isa.map(|s| (*s).to_owned()).collect(),
        caches: caches(),
        memory_gib: (kib / 1024.0 / 1024.0 * 10.0).round() / 10.0,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        load: read("/proc/loadavg")
            .split(' ')
            .next()
            .and_then(|s| s.parse().ok())
            .unwrap_or(0.0),
    }
}

/// Keeps this process, all its threads, to `cores`, as `taskset` reads them.
pub fn keep_to(cores: &str) -> anyhow::Result<()> {
    let id = std::process::id().to_string();
    let told = Command::new("taskset")
        .args(["--all-tasks", "--cpu-list", "--pid", cores, &id])
        .output()
        .context("taskset, which binds processes to cores, cannot be run")?;
    if !told.status.success() {
        let reason = String::from_utf8_lossy(&told.stderr);
        bail!("cannot keep to cores {cores}: {}", reason.trim());
    }
    Ok(())
}

fn caches() -> Vec<String> {
    let dir = "/sys/devices/system/cpu/cpu0/cache";
    (0..8)
        .map_while(|i| {
            let level = fs::read_to_string(format!("{dir}/index{i}/level")).ok()?;
            let part = |name: &str| read(&format!("{dir}/index{i}/{name}")).trim().to_owned();
            Some(format!(
                "L{} {} {}",
                level.trim(),
                part("type"),
                part("size")
            ))
        })
        .collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
