//! The file.

use std::{fs, path::PathBuf, time::Duration};

use foretoken_registry::{Directory, Registry, StaticRegistry, write_directory};
use tempfile::TempDir;

use crate::{
    log::Log,
    suite::{Backend, conforms},
};

struct File {
    folder: TempDir,
}

impl File {
    fn path(&self) -> PathBuf {
        self.folder.path().join("directory.json")
    }
}

impl Backend for File {
    async fn write(&mut self, directory: &Directory) {
        write_directory(&self.path(), directory).unwrap();
    }

    async fn open(&self) -> Box<dyn Registry> {
        Box::new(StaticRegistry::open(self.path()).unwrap())
    }

    async fn spoil(&mut self) {
        fs::write(self.path(), "targets:\n- nonsense\n").unwrap();
    }

    fn culprit(&self) -> String {
        "directory.json is not a directory of targets and endpoints".into()
    }

    async fn leave(&mut self) {
        fs::remove_file(self.path()).unwrap();
    }

    async fn come_back(&mut self, directory: &Directory) {
        self.write(directory).await;
    }
}

#[tokio::test]
async fn a_file_conforms() {
    let make = async || File {
        folder: tempfile::tempdir().unwrap(),
    };
    conforms(make).await;
}

#[tokio::test]
async fn who_reads_the_log_is_told_once_of_a_pool_whose_name_nobody_knows() {
    let log = Log::listen();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory.yaml");
    // Names under `invalid` never exist (RFC 6761).
    let text =
        "pools: {targets: [{name: t, model: m, address: \"http://no-such-service.invalid:7000\"}]}";
    fs::write(&path, text).unwrap();
    let _registry = StaticRegistry::open(&path).unwrap();
    let mut said = String::new();
    let told = async {
        while !said.contains("no-such-service.invalid") {
            tokio::time::sleep(Duration::from_millis(20)).await;
            said += &log.take();
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert!(told.is_ok(), "nobody is told: {said}");
    assert!(said.contains("cannot be resolved"), "{said}");
    // Long enough for it to be looked up again.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(log.take(), "", "and once is enough");
}
