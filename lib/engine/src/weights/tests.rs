use std::path::Path;

use super::WeightsError;
use super::header;

/// A file with one f32 tensor `a` of two values behind the given header.
fn file(header: &str) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([1.0f32, -2.0].iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

fn read(bytes: &[u8]) -> Result<usize, WeightsError> {
    header::read(Path::new("m.safetensors"), bytes).map(|entries| entries.len())
}

const GOOD: &str = r#"{"__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}"#;

#[test]
fn a_sound_header_gives_ranges_from_the_files_start() {
    let bytes = file(GOOD);
    let entries = header::read(Path::new("m.safetensors"), &bytes).unwrap();
    let entry = &entries["a"];
    assert_eq!(
        (entry.dtype.as_str(), entry.shape.as_slice()),
        ("F32", [2].as_slice())
    );
    assert_eq!(entry.bytes, bytes.len() - 8..bytes.len());
}

#[test]
fn every_truncation_is_refused() {
    let bytes = file(GOOD);
    for len in 0..bytes.len() {
        assert!(
            read(&bytes[..len]).is_err(),
            "{len} of {} bytes",
            bytes.len()
        );
    }
    assert_eq!(read(&bytes).unwrap(), 1);
}

#[test]
fn a_tensor_of_an_unknown_kind_may_lie_unused_but_not_outside_the_file() {
    let odd = GOOD.replace("F32", "F4_X2");
    assert_eq!(read(&file(&odd)).unwrap(), 1);
    let outside = odd.replace("[0, 8]", "[0, 80]");
    assert!(matches!(
        read(&file(&outside)),
        Err(WeightsError::Truncated { .. })
    ));
}

#[test]
fn tensors_that_overlap_or_leave_something_out_are_not_those_of_the_file() {
    let two = |places: [[u32; 2]; 2]| {
        let entries = [("a", places[0]), ("b", places[1])].map(|(name, [from, to])| {
            let values = to.saturating_sub(from) / 4;
            format!(
                r#""{name}": {{"dtype": "F32", "shape": [{values}], "data_offsets": [{from}, {to}]}}"#
            )
        });
        read(&file(&format!("{{{}}}", entries.join(", "))))
    };
    assert_eq!(two([[4, 8], [0, 4]]).unwrap(), 2);
    assert_eq!(two([[0, 8], [8, 8]]).unwrap(), 2);
    for (places, named, expected) in [
        (
            [[0, 8], [4, 8]],
            "b",
            "begins at 4 where the one before ends at 8",
        ),
        (
            [[0, 8], [0, 8]],
            "",
            "begins at 0 where the one before ends at 8",
        ),
        (
            [[4, 8], [4, 4]],
            "b",
            "begins at 4 where the one before ends at 0",
        ),
        ([[0, 4], [4, 4]], "", "4 bytes follow the last tensor"),
    ] {
        let error = two(places).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(named), "{error}");
    }
}

#[test]
fn a_header_repeats_no_long_text_in_its_message() {
    let long = format!(
        r#"{{"a": {{"dtype": "{}", "shape": [2], "data_offsets": [0, 8]}}}}"#,
        "x".repeat(99)
    );
    let entries = header::read(Path::new("m.safetensors"), &file(&long)).unwrap();
    assert_eq!(entries["a"].dtype.len(), 16);
}
