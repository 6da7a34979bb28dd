//! Links the executable statically (as a position-independent one) where the host has static libraries.
//!
//! It starts itself again for each of its roles, and to find and bind shared libraries is a good part of what a start
//! takes. `-C target-feature=+crt-static` would be the way, but in a build for the host it holds for procedural macros
//! too, which cannot be static. So the executable alone is linked with `-static-pie`, and the names of the shared
//! libraries that rustc hands to the linker lead to the static ones: by linker scripts in a directory that is
//! searched first. `SENTRY_LINK=dynamic` in the environment of the build leaves all that out.

use std::path::Path;
use std::process::Command;

/// The libraries that rustc may name for x86_64-unknown-linux-gnu, and the archives that take their places.
const LIBRARIES: [(&str, &[&str]); 7] = [
    ("gcc_s", &["libgcc_eh.a", "libgcc.a"]),
    ("c", &["libc.a"]),
    ("m", &["libm.a"]),
    ("rt", &["librt.a"]),
    ("pthread", &["libpthread.a"]),
    ("dl", &["libdl.a"]),
    ("util", &["libutil.a"]),
];
/// What starts a static position-independent executable.
const START: &str = "rcrt1.o";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SENTRY_LINK");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found.split(',').any(|it| it == value));
    let same_machine = std::env::var("HOST") == std::env::var("TARGET");
    if !same_machine
        || is("SENTRY_LINK", "dynamic")
        || !is("CARGO_CFG_TARGET_ENV", "gnu")
        || is("CARGO_CFG_TARGET_FEATURE", "crt-static")
    {
        return;
    }
    if let Err(missing) = link_statically() {
        println!("cargo::warning=sentry is linked dynamically and starts more slowly: there is no {missing}");
    }
}

fn link_statically() -> Result<(), String> {
    let directory = std::env::var("OUT_DIR").map_err(|_| "OUT_DIR")?;
    let compiler = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    let find = |file: &str| {
        let output = Command::new(&compiler).arg(format!("-print-file-name={file}")).output();
        let path = output.map_err(|error| format!("{compiler} ({error})"))?.stdout;
        let path = String::from_utf8_lossy(&path).trim().to_owned();
        // A file that it does not find has no directory.
        if Path::new(&path).is_absolute() {
            Ok(path)
        } else {
            Err(file.to_owned())
        }
    };
    find(START)?;
    for (library, archives) in LIBRARIES {
        let paths = archives.iter().map(|file| find(file)).collect::<Result<Vec<_>, _>>()?;
        let script = Path::new(&directory).join(format!("lib{library}.so"));
        std::fs::write(&script, format!("GROUP({})\n", paths.join(" ")))
            .map_err(|error| format!("{} ({error})", script.display()))?;
    }
    for argument in ["-static-pie", &format!("-L{directory}")] {
        println!("cargo::rustc-link-arg-bin=sentry={argument}");
    }
    Ok(())
}
