//! A picture of the results: bars on a logarithmic scale, a group for each row.

use std::fmt::Write as _;

use crate::On;
use crate::report::{Results, figure};

const LEFT: f64 = 270.0;
const WIDTH: f64 = 560.0;
const BAR: f64 = 11.0;
const GAP: f64 = 9.0;
const TOP: f64 = 70.0;

fn colour(on: On) -> &'static str {
    match on {
        On::Native => "#9aa0a6",
        On::Systrap => "#1a73e8",
        On::Ptrace => "#f9ab00",
        On::Runsc => "#d93025",
    }
}

/// The picture, as SVG. Each row has its own unit, so the scale is that of the numbers.
pub fn draw(results: &Results) -> String {
    let rows: Vec<_> = results.rows().collect();
    let values = rows
        .iter()
        .flat_map(|row| results.systems.iter().filter_map(|&on| results.median(row, on)));
    let (low, high) = values
        .filter(|value| *value > 0.0)
        .fold((1.0_f64, 10.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
    let (low, high) = (low.log10().floor(), high.log10().ceil());
    let x = |value: f64| (value.max(1e-9).log10().max(low) - low) / (high - low) * WIDTH;
    let group = BAR * results.systems.len() as f64 + GAP;
    let height = TOP + group * rows.len() as f64 + 30.0;

    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0} {height:.0}" font-family="sans-serif" font-size="11">"#,
        LEFT + WIDTH + 90.0
    );
    let _ = writeln!(svg, r#"<rect width="100%" height="100%" fill="white"/>"#);
    let pinned = results
        .machine
        .pinned
        .map_or("unpinned".into(), |cpu| format!("pinned to processor {cpu}"));
    let caption = format!("{}; {}; {pinned}", results.machine.processor, results.machine.kernel);
    text(
        &mut svg,
        10.0,
        18.0,
        "start",
        &format!("Medians, shorter is better (logarithmic). {caption}"),
    );
    let mut legend = 10.0;
    for &on in &results.systems {
        let _ = writeln!(
            svg,
            r#"<rect x="{legend:.0}" y="28" width="12" height="12" fill="{}"/>"#,
            colour(on)
        );
        text(&mut svg, legend + 16.0, 38.0, "start", on.name());
        legend += 80.0;
    }
    let mut power = low;
    while power <= high {
        let at = LEFT + x(10f64.powf(power));
        let _ = writeln!(
            svg,
            r##"<line x1="{at:.1}" y1="{:.0}" x2="{at:.1}" y2="{:.0}" stroke="#dddddd"/>"##,
            TOP - 6.0,
            height - 24.0
        );
        text(&mut svg, at, TOP - 10.0, "middle", &format!("{}", 10f64.powf(power)));
        power += 1.0;
    }
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + group * index as f64;
        let middle = y + BAR * results.systems.len() as f64 / 2.0 + 4.0;
        text(
            &mut svg,
            LEFT - 8.0,
            middle,
            "end",
            &format!("{} ({})", row.work, row.unit.name()),
        );
        for (number, &on) in results.systems.iter().enumerate() {
            let y = y + BAR * number as f64;
            let Some(value) = results.median(row, on) else { continue };
            let length = x(value).max(1.0);
            let _ = writeln!(
                svg,
                r#"<rect x="{LEFT:.1}" y="{y:.1}" width="{length:.1}" height="{:.1}" fill="{}"/>"#,
                BAR - 1.0,
                colour(on)
            );
            text(&mut svg, LEFT + length + 4.0, y + 9.0, "start", &figure(value));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="#202124">{words}</text>"##
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_a_bar_and_names_are_escaped() {
        let mut results = Results::new(vec![On::Native, On::Systrap], None);
        results.machine.processor = "a<b".into();
        results.add(On::Native, vec![("getpid", 0.1)]);
        results.add(On::Systrap, vec![("getpid", 1.5)]);
        let svg = draw(&results);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert_eq!(svg.matches("<rect x=\"270.0\"").count(), 2);
    }
}
