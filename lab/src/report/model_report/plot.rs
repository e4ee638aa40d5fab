//! The share of crossings over sizes, as an SVG image.

use std::error::Error;
use std::fmt::Display;

use plotters::prelude::*;

use crate::experiments::crossing_model::{CrossingModel, PathRow};

const SIZE: (u32, u32) = (960, 640);

/// A line for the exchange, and a point for each server.
pub(super) fn svg(model: &CrossingModel) -> Result<String, Box<dyn Error>> {
    draw(model).map_err(|error| format!("the plot: {error}").into())
}

fn draw(model: &CrossingModel) -> Result<String, String> {
    let failed = |error: &dyn Display| error.to_string();
    // Logarithms, because sizes are.
    let point = |row: &PathRow| ((row.bytes as f64).log2(), row.potential.median * 100.0);
    let line: Vec<(f64, f64)> =
        model.path.rows.iter().filter(|row| row.potential.count > 0).map(point).collect();
    let servers: Vec<(f64, f64, &str)> = model
        .servers
        .iter()
        .filter(|it| it.potential.count > 0)
        .map(|it| ((it.bytes as f64).log2(), it.potential.median * 100.0, it.name.as_str()))
        .collect();
    let shares = line.iter().map(|it| it.1).chain(servers.iter().map(|it| it.1));
    let high = shares.fold(1.0, f64::max) * 1.1;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(80)
            .build_cartesian_2d(5.0..21.0, 0.0..high)
            .map_err(|error| failed(&error))?;
        chart
            .configure_mesh()
            .x_desc("bytes of a reply")
            .y_desc("CPU time in crossings, %")
            .x_label_formatter(&|exponent: &f64| format!("{:.0}", exponent.exp2()))
            .light_line_style(WHITE.mix(0.0))
            .draw()
            .map_err(|error| failed(&error))?;
        chart
            .draw_series(LineSeries::new(line, BLUE.stroke_width(2)))
            .map_err(|error| failed(&error))?
            .label("the exchange")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], BLUE.stroke_width(2)));
        let point = |&(x, y, name): &(f64, f64, &str)| {
            EmptyElement::at((x, y))
                + Circle::new((0, 0), 4, BLACK.filled())
                + Text::new(name.to_owned(), (8, -6), ("sans-serif", 14))
        };
        chart.draw_series(servers.iter().map(point)).map_err(|error| failed(&error))?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .draw()
            .map_err(|error| failed(&error))?;
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;

    #[test]
    fn the_plot_has_a_line_and_a_point_for_each_server() {
        let mut report = report();
        let text = report.svg().unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.matches("<circle").count() == 4 && text.contains("memcached, uring"), "{text}");
        assert!(text.contains("<polyline"), "{text}");
        report.model.path.rows.clear();
        report.model.servers.clear();
        assert!(report.svg().unwrap().starts_with("<svg"), "an empty plot has its axes");
    }
}
