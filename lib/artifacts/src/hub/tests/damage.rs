//! Hubs and mirrors that send something else than they should.

use super::*;

#[tokio::test]
async fn damaged_files_are_not_used_nor_kept() {
    let (_mirror, options, cache) = serve(Mirror {
        files: tiny(),
        lies: true,
        ..Mirror::default()
    })
    .await;
    let error = uri().resolve(&options, &Silent).await.unwrap_err();
    assert!(matches!(&error, HubError::Damaged { file, .. } if file == "model.safetensors"));
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert!(
        !repository(&cache).join("snapshots").exists(),
        "no snapshot of half a model"
    );
    let left: Vec<_> = fs::read_dir(repository(&cache).join("blobs"))
        .unwrap()
        .collect();
    let is_whole = |entry: &fs::DirEntry| entry.file_name().len() == 40;
    let is_empty = |entry: &fs::DirEntry| entry.metadata().unwrap().len() == 0;
    assert!(
        left.iter()
            .flatten()
            .all(|entry| is_whole(entry) || is_empty(entry)),
        "{left:?}"
    );
}

#[tokio::test]
async fn whoever_waited_for_a_file_that_is_damaged_fetches_it() {
    let (_mirror, options, cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let blobs = repository(&cache).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.incomplete", sha256(&weights())));
    fs::write(&part, vec![0; weights().len()]).unwrap();
    let damaged = uri().resolve(&options, &Silent).await.unwrap_err();
    assert!(matches!(&damaged, HubError::Damaged { .. }), "{damaged}");
    assert_eq!(
        fs::metadata(&part).unwrap().len(),
        0,
        "who has it open would look at a file without a name"
    );
    uri().resolve(&options, &Silent).await.unwrap();
}

/// As a proxy does that wants to be logged in to.
#[tokio::test]
async fn a_page_in_the_place_of_a_file_is_no_part_of_it() {
    for (strays, is_there) in [(2, true), (u32::MAX, false)] {
        let (_mirror, options, _cache) = serve(Mirror {
            files: vec![
                ("config.json", vec![b' '; 100]),
                ("tokenizer.json", vec![b' '; 100]),
                ("model.safetensors", weights()),
            ],
            strays: strays.into(),
            ..Mirror::default()
        })
        .await;
        let resolved = uri().resolve(&options, &Silent).await;
        let Ok(folder) = resolved else {
            let error = resolved.unwrap_err();
            assert!(matches!(&error, HubError::Damaged { .. }), "{error}");
            assert!(!is_there, "{error}");
            continue;
        };
        assert!(is_there, "what is it made of?");
        for name in ["config.json", "tokenizer.json"] {
            assert_eq!(fs::read(folder.join(name)).unwrap(), [b' '; 100], "{name}");
        }
    }
}

#[tokio::test]
async fn a_page_in_the_place_of_the_rest_of_a_file_costs_nothing_of_what_is_there() {
    let (mirror, options, cache) = serve(Mirror {
        files: tiny(),
        strays: 1.into(),
        strays_of: "safetensors",
        ..Mirror::default()
    })
    .await;
    let blobs = repository(&cache).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.incomplete", sha256(&weights())));
    fs::write(&part, &weights()[..200_000]).unwrap();
    let progress = Sum::default();
    let folder = uri().resolve(&options, &progress).await.unwrap();
    assert_eq!(
        fs::read(folder.join("model.safetensors")).unwrap(),
        weights()
    );
    let ranges = mirror.ranges.lock().unwrap().clone();
    assert_eq!(ranges, ["bytes=200000-299999"]);
    assert_eq!(
        progress.seen.load(Ordering::Relaxed),
        progress.total.load(Ordering::Relaxed)
    );
}

#[tokio::test]
async fn a_hub_chooses_no_folder() {
    for commit in ["../../elsewhere", "", ".."] {
        let (_mirror, options, cache) = serve(Mirror {
            files: tiny(),
            commit: Some(commit),
            ..Mirror::default()
        })
        .await;
        let folder = uri().resolve(&options, &Silent).await.unwrap();
        assert_eq!(folder, repository(&cache).join("snapshots").join("main"));
        assert!(!cache.path().join("elsewhere").exists());
    }
}

#[tokio::test]
async fn a_file_that_is_shorter_than_announced_says_so() {
    let (_mirror, options, _cache) = serve(Mirror {
        files: tiny(),
        lacks: 10,
        ..Mirror::default()
    })
    .await;
    let error = uri().resolve(&options, &Silent).await.unwrap_err();
    let expected = "it has not the 300000 bytes announced";
    assert!(error.to_string().contains(expected), "{error}");
}
