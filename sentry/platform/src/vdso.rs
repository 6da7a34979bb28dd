//! The host's vDSO: where it is mapped in this process, and so in every guest process.

/// The host's vDSO. Find it before `/proc` is out of reach.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostVdso {
    /// Its data pages and its code, as one range of addresses.
    pub range: Option<(u64, u64)>,
    /// Its ELF header.
    pub base: u64,
    /// Its `clock_gettime`, or 0.
    pub clock_gettime: u64,
}

impl HostVdso {
    /// Reads it from `/proc/self/maps`. Without that, guests have no vDSO and clocks cost a system call.
    pub fn find() -> HostVdso {
        std::fs::read_to_string("/proc/self/maps")
            .map(|maps| HostVdso::parse(&maps))
            .unwrap_or_default()
    }

    fn parse(maps: &str) -> HostVdso {
        let mut vdso = HostVdso::default();
        for line in maps.lines() {
            let Some((range, rest)) = line.split_once(' ') else {
                continue;
            };
            if !(rest.ends_with("[vdso]") || rest.ends_with("[vvar]") || rest.ends_with("[vvar_vclock]")) {
                continue;
            }
            let Some((start, end)) = range.split_once('-') else {
                continue;
            };
            let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) else {
                continue;
            };
            vdso.range = Some(vdso.range.map_or((start, end), |(a, b)| (a.min(start), b.max(end))));
            if rest.ends_with("[vdso]") {
                vdso.base = start;
                vdso.clock_gettime = symbol(start, end - start, b"__vdso_clock_gettime").unwrap_or(0);
            }
        }
        vdso
    }
}

/// Looks a function up in the vDSO's dynamic symbols.
fn symbol(base: u64, len: u64, name: &[u8]) -> Option<u64> {
    // SAFETY: [base, base + len) is the vDSO, which the kernel maps readable and never changes or unmaps.
    let image = unsafe { std::slice::from_raw_parts(base as *const u8, usize::try_from(len).ok()?) };
    let u16_at = |at: usize| Some(u16::from_le_bytes(image.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(image.get(at..at + 8)?.try_into().ok()?));
    let (headers, size, count) = (u64_at(40)? as usize, u16_at(58)? as usize, u16_at(60)? as usize);
    let sections = || (0..count).map(move |index| headers + index * size);
    const SHT_DYNSYM: u32 = 11;
    let dynsym = sections().find(|at| u32_at(at + 4) == Some(SHT_DYNSYM))?;
    let strings = headers + u32_at(dynsym + 40)? as usize * size;
    let names = u64_at(strings + 24)? as usize;
    let (start, bytes) = (u64_at(dynsym + 24)? as usize, u64_at(dynsym + 32)? as usize);
    for at in (start..start + bytes).step_by(24) {
        let text = image.get(names + u32_at(at)? as usize..)?;
        if text.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0)) {
            return Some(base + u64_at(at + 8)?);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_vdso_has_a_clock() {
        let vdso = HostVdso::find();
        assert!(vdso.base != 0 && vdso.clock_gettime > vdso.base);
        let (start, end) = vdso.range.unwrap();
        assert!(start <= vdso.base && vdso.clock_gettime < end);
    }
}
