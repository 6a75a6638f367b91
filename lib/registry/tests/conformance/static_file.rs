//! The file.

use std::{fs, path::PathBuf};

use foretoken_registry::{Directory, Registry, StaticRegistry, write_directory};
use tempfile::TempDir;

use crate::suite::{Backend, conforms};

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
