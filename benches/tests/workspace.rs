//! Promises about the code as a whole: who may depend on whom, and where `unsafe` may stand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

/// The crates of the product, each with its layer: a crate depends on lower layers only.
const LAYERS: &[(&str, &str, u8)] = &[
    ("sentry", "sentry/cli", 6),
    ("sentry-oci", "sentry/oci", 5),
    ("sentry-kernel", "sentry/kernel", 4),
    ("sentry-vfs", "sentry/vfs", 3),
    ("sentry-netstack", "netstack", 3),
    ("sentry-loader", "loader", 3),
    ("sentry-platform", "sentry/platform", 3),
    ("sentry-gofer", "gofer", 2),
    ("sentry-stub", "sentry/stub", 2),
    ("sentry-host", "sentry/host", 1),
    ("sentry-limits", "sentry/limits", 0),
    ("sentry-lock", "sentry/lock", 0),
    ("sentry-abi", "sentry/abi", 0),
];

/// Crates that may hold unsafe code.
const UNSAFE: &[&str] = &["sentry/host", "sentry/platform", "sentry/stub"];

fn layer(name: &str) -> Option<u8> {
    LAYERS.iter().find(|row| row.0 == name).map(|row| row.2)
}

/// The crates of the workspace and those of them that each depends on, tests aside.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root())
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut crates = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("a list") {
        let local = package["dependencies"].as_array().expect("a list").iter();
        let local = local.filter(|dependency| dependency["path"].is_string() && dependency["kind"] != "dev");
        let names = local
            .map(|dependency| dependency["name"].as_str().expect("a name").to_owned())
            .collect();
        crates.insert(package["name"].as_str().expect("a name").to_owned(), names);
    }
    crates
}

#[test]
fn dependencies_point_one_way() {
    let crates = dependencies();
    assert!(crates.contains_key("sentry") && crates.contains_key("sentry-abi"));
    for (name, needs) in &crates {
        for need in needs {
            let below = layer(need).unwrap_or_else(|| panic!("{name} depends on {need}, which is for tests"));
            let Some(own) = layer(name) else { continue };
            assert!(own > below, "{name} (layer {own}) depends on {need} (layer {below})");
            let stub = need == "sentry-stub";
            assert!(
                !stub || name == "sentry-platform",
                "{name} depends on the stub; only the platform may"
            );
        }
    }
}

#[test]
fn every_crate_has_its_place() {
    let tests = ["conformance", "sentry-guest", "sentry-fuzz", "sentry-benches"];
    for name in dependencies().keys() {
        assert!(
            layer(name).is_some() || tests.contains(&name.as_str()),
            "{name} is in no layer"
        );
    }
}

/// The Rust files of a crate, tests in directories of their own aside.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.join("src"), folder.join("image")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The code without comments and without the contents of strings.
fn bare(code: &str) -> String {
    let characters: Vec<char> = code.chars().collect();
    let at = |index: usize| characters.get(index).copied().unwrap_or('\0');
    let mut bare = String::new();
    let mut index = 0;
    while index < characters.len() {
        match (at(index), at(index + 1)) {
            ('/', '/') => {
                while index < characters.len() && at(index) != '\n' {
                    index += 1;
                }
            }
            ('/', '*') => {
                while index < characters.len() && !(at(index) == '*' && at(index + 1) == '/') {
                    index += 1;
                }
                index += 2;
            }
            ('"', _) => {
                // The hashes of a raw string say how it ends.
                let mut hashes = 0;
                while hashes < index && at(index - 1 - hashes) == '#' {
                    hashes += 1;
                }
                let raw = index > hashes && at(index - 1 - hashes) == 'r';
                index += 1;
                while index < characters.len() {
                    let closed = at(index) == '"' && (!raw || (1..=hashes).all(|ahead| at(index + ahead) == '#'));
                    if closed {
                        break;
                    }
                    index += if at(index) == '\\' && !raw { 2 } else { 1 };
                }
                index += 1;
            }
            ('\'', '"') if at(index + 2) == '\'' => index += 3,
            ('\'', '\\') if at(index + 2) == '"' && at(index + 3) == '\'' => index += 4,
            (character, _) => {
                bare.push(character);
                index += 1;
            }
        }
    }
    bare
}

/// How often `unsafe`, `static mut` and `transmute` stand in the code.
fn count(code: &str) -> [usize; 3] {
    let bare = bare(code);
    let words: Vec<&str> = bare
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let word = |wanted: &str| words.iter().filter(|word| **word == wanted).count();
    let pairs = words.windows(2).filter(|pair| *pair == ["static", "mut"]).count();
    [word("unsafe"), pairs, word("transmute") + word("transmute_copy")]
}

const BASELINE: &str = "benches/tests/unsafe-counts.txt";

/// The counts can only fall. When they have fallen, `UPDATE_COUNTS=1` writes the file anew.
#[test]
fn unsafe_code_grows_nowhere() {
    let mut counts = BTreeMap::new();
    for (_, folder, _) in LAYERS {
        let mut total = [0; 3];
        for file in sources(&root().join(folder)) {
            let counted = count(&fs::read_to_string(&file).unwrap());
            total
                .iter_mut()
                .zip(counted)
                .for_each(|(total, counted)| *total += counted);
        }
        counts.insert(*folder, total);
    }
    let path = root().join(BASELINE);
    if std::env::var_os("UPDATE_COUNTS").is_some() {
        let mut text = "# crate, unsafe, static mut, transmute: these can only fall\n".to_owned();
        for (folder, [a, b, c]) in counts.iter().filter(|(_, counts)| **counts != [0; 3]) {
            text += &format!("{folder} {a} {b} {c}\n");
        }
        fs::write(&path, text).unwrap();
    }
    let baseline = fs::read_to_string(&path).unwrap();
    let mut allowed = BTreeMap::new();
    for line in baseline.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let folder = words.next().unwrap();
        let numbers: Vec<usize> = words.map(|word| word.parse().unwrap()).collect();
        allowed.insert(folder, [numbers[0], numbers[1], numbers[2]]);
    }
    for (folder, counts) in counts {
        let allowed = allowed.get(folder).copied().unwrap_or_default();
        for (index, what) in ["unsafe", "static mut", "transmute"].iter().enumerate() {
            let (now, before) = (counts[index], allowed[index]);
            assert!(
                now <= before,
                "{folder} has {now} times `{what}`; {BASELINE} says {before}"
            );
            assert!(now == 0 || UNSAFE.contains(&folder), "{folder} has `{what}`");
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_where_it_is_not_needed() {
    let safe = LAYERS.iter().map(|row| row.1).filter(|folder| !UNSAFE.contains(folder));
    for folder in safe.chain(["benches", "conformance"]) {
        for file in ["src/lib.rs", "src/main.rs"] {
            let Ok(code) = fs::read_to_string(root().join(folder).join(file)) else {
                continue;
            };
            assert!(
                bare(&code).contains("#![forbid(unsafe_code)]"),
                "{folder}/{file} does not forbid unsafe code"
            );
        }
    }
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    for (_, folder, _) in LAYERS {
        let Ok(manifest) = fs::read_to_string(root().join(folder).join("Cargo.toml")) else {
            continue;
        };
        assert!(manifest.contains("[lints]\nworkspace = true"), "{folder}");
    }
}

/// Files, and tests in them, that the documents name in backquotes or as links.
#[test]
fn documents_name_what_exists() {
    let mut documents = vec![root().join("README.md")];
    documents.extend(
        fs::read_dir(root().join("docs"))
            .unwrap()
            .map(|entry| entry.unwrap().path()),
    );
    for document in documents
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
    {
        let text = fs::read_to_string(document).unwrap();
        let name = document.display();
        for word in text.split('`').skip(1).step_by(2) {
            let file = word.contains('/') && [".rs", ".toml", ".txt"].iter().any(|end| word.ends_with(end));
            assert!(!file || root().join(word).exists(), "{name} names {word}");
        }
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(
                link.contains("://") || document.with_file_name(link).exists(),
                "{name} links to {link}"
            );
        }
        // Attacks and escape attempts of the conformance suite.
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && !"/_…".contains(c)) {
            let Some((suite @ ("hostile" | "escape"), test)) = word.split_once('/') else {
                continue;
            };
            let code = fs::read_to_string(root().join(format!("conformance/src/{suite}.rs"))).unwrap();
            assert!(
                test == "…" || code.contains(&format!("\"{test}\"")),
                "{name} names {word}"
            );
        }
        // `file.rs` (one_test, another)
        for (file, rest) in text.split("` (").zip(text.split("` (").skip(1)) {
            let file = root().join(file.rsplit('`').next().unwrap());
            let (Ok(code), Some((tests, _))) = (fs::read_to_string(&file), rest.split_once(')')) else {
                continue;
            };
            for test in tests.split(", ") {
                assert!(
                    code.contains(&format!("fn {test}(")),
                    "{name} names {test} in {}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn comments_and_strings_do_not_count() {
    let code = r##"
        // unsafe
        /* unsafe transmute */
        const A: &str = "unsafe \" unsafe";
        const B: &str = r#"unsafe " unsafe"#;
        const C: char = '"';
        #![deny(unsafe_op_in_unsafe_fn)]
        unsafe { transmute::<u8, i8>(0) }
        static mut D: u8 = 0;
    "##;
    assert_eq!(count(code), [1, 1, 1]);
}
