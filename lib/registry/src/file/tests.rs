use foretoken_protocol::tls::Served;

use super::*;
use crate::{EndpointEntry, TargetEntry};

fn directory(target: &str) -> Directory {
    Directory {
        targets: vec![TargetEntry {
            name: target.into(),
            model: "tiny".into(),
            address: "http://127.0.0.1:9000".parse().expect("address"),
            serves: Some(Served::new("chat", "story").expect("names")),
        }],
        endpoints: vec![EndpointEntry {
            name: "draft-0".into(),
            address: "unix:/run/draft-0.sock".parse().expect("address"),
            weight: 3,
            serves: None,
        }],
        ..Directory::default()
    }
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("directory.json");
    write_directory(&path, &directory("a")).expect("writes");
    assert_eq!(read_directory(&path).expect("reads"), directory("a"));
    let files: Vec<_> = fs::read_dir(folder.path()).expect("lists").collect();
    assert_eq!(files.len(), 1, "nothing staged stays behind");
}

#[test]
fn yaml_is_read_with_defaults() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("directory.yaml");
    fs::write(&path, "endpoints:\n- name: d\n  address: unix:/d\n").expect("writes");
    let directory = read_directory(&path).expect("reads");
    assert_eq!(directory.targets, []);
    assert_eq!(directory.endpoints[0].weight, 1);
}

#[test]
fn a_mistake_is_reported_with_its_line() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("directory.yaml");
    for (text, line, word) in [
        (
            "targets:\n- name: a\n  model: m\n  address: nonsense\n",
            "4",
            "nonsense",
        ),
        (
            "targets:\n- name: a\n  model: m\n  adress: unix:/a\n",
            "4",
            "adress",
        ),
        ("targets: [\n", "", ""),
    ] {
        fs::write(&path, text).expect("writes");
        let message = read_directory(&path).expect_err(text).to_string();
        assert!(
            message.contains(line) && message.contains(word),
            "{text}: {message}"
        );
        assert!(message.contains("directory.yaml"), "{message}");
    }
}

#[test]
fn a_directory_that_contradicts_itself_is_neither_read_nor_written() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("directory.yaml");
    let mut twice = directory("a");
    twice.targets.push(twice.targets[0].clone());
    assert!(matches!(
        write_directory(&path, &twice),
        Err(RegistryError::Inconsistent {
            source: DirectoryError::Twice { .. },
            ..
        })
    ));
    fs::write(&path, serde_json::to_string(&twice).expect("json")).expect("writes");
    assert!(matches!(
        read_directory(&path),
        Err(RegistryError::Inconsistent { .. })
    ));
    twice.targets[0].name.clear();
    assert!(matches!(
        twice.check(),
        Err(DirectoryError::Empty { field: "name", .. })
    ));
    twice.targets[0].model.clear();
    assert!(matches!(
        twice.check(),
        Err(DirectoryError::Empty { field: "model", .. })
    ));
}

#[tokio::test]
async fn a_change_is_seen_and_a_broken_edit_keeps_the_last_good_directory() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("directory.json");
    write_directory(&path, &directory("a")).expect("writes");
    let registry = StaticRegistry::open(&path).expect("opens");
    let mut watch = registry.watch();
    assert_eq!(**watch.borrow_and_update(), directory("a"));

    fs::write(&path, "targets: 7").expect("writes");
    // Long enough for the broken file to be looked at; if it is not, the test still holds.
    tokio::time::sleep(POLL * 2).await;
    assert_eq!(**watch.borrow(), directory("a"));

    write_directory(&path, &directory("b")).expect("writes");
    watch.changed().await.expect("registry lives");
    assert_eq!(**watch.borrow(), directory("b"));
}

#[test]
fn a_file_that_cannot_be_read_is_tried_until_it_can_be() {
    let folder = tempfile::tempdir().expect("folder");
    let [path, aside] = ["directory.json", "aside"].map(|name| folder.path().join(name));
    write_directory(&path, &directory("a")).expect("writes");
    let (mut file, _) = File::open(path.clone(), Interest::All).expect("opens");
    assert!(file.look().is_none(), "nothing has changed");

    fs::rename(&path, &aside).expect("moves");
    // A folder has a stamp, and nobody can read it as a file.
    fs::create_dir(&path).expect("makes a folder");
    for _ in 0..2 {
        let look = file.look();
        assert!(
            matches!(look, Some(Err(RegistryError::Read { .. }))),
            "{look:?}"
        );
    }
    fs::remove_dir(&path).expect("removes");
    fs::rename(&aside, &path).expect("moves back");
    let look = file.look().expect("is news").expect("can be read");
    assert_eq!(look, directory("a"));

    fs::write(&path, [0xff]).expect("writes");
    assert!(file.look().expect("is news").is_err());
    assert!(
        file.look().is_none(),
        "what is wrong with the text stays wrong"
    );
}

#[cfg(unix)]
#[test]
fn a_change_that_leaves_length_and_time_is_seen() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("directory.json");
    fs::write(&path, serde_json::to_string(&directory("a")).expect("json")).expect("writes");
    let modified = fs::metadata(&path).and_then(|it| it.modified());
    let (mut file, _) = File::open(path.clone(), Interest::All).expect("opens");
    // Clocks of file systems go by steps.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&path, serde_json::to_string(&directory("b")).expect("json")).expect("writes");
    let written = fs::File::options().write(true).open(&path).expect("opens");
    written
        .set_modified(modified.expect("a time"))
        .expect("sets the time");
    let look = file.look().expect("is news").expect("can be read");
    assert_eq!(look, directory("b"));
}

#[tokio::test]
async fn a_missing_file_is_an_error_at_the_start() {
    let error = StaticRegistry::open("/nonexistent/directory.yaml").expect_err("is missing");
    assert!(matches!(error, RegistryError::Read { .. }), "{error:?}");
}

#[tokio::test]
async fn a_pool_becomes_what_its_name_stands_for() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("directory.yaml");
    let text = "pools:\n  targets:\n  - {name: t, model: m, address: http://localhost:9}\n";
    fs::write(&path, text).expect("writes");
    let registry = StaticRegistry::open(&path).expect("opens");
    let mut directory = registry.watch();
    let has_one = |directory: &Arc<Directory>| {
        let mut names = directory.targets.iter().map(|target| target.name.as_str());
        names.any(|name| ["t@127.0.0.1", "t@::1"].contains(&name))
    };
    let found = directory.wait_for(has_one).await.expect("lives").clone();
    assert!(found.pools.is_empty());
    assert_eq!(found.targets[0].model, "m");
}
