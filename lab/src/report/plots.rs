//! Plots as SVG images that are legible on a dark page and on a light one.

use loadgen::medians::Interval;
use plotters::prelude::*;

const SIZE: (u32, u32) = (860, 460);
/// Colours that people with any colour vision tell apart, legible on dark and on light (Okabe and
/// Ito).
const COLOURS: [u32; 7] = [0x00_8fd1, 0xd5_5e00, 0x00_9e73, 0xcc_79a7, 0xe6_9f00, 0x56_b4e9, 0x8a_8a8a];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) title: &'static str,
    pub(crate) logarithmic: bool,
}

impl Axis {
    /// A value's place on the axis.
    fn place(self, value: f64) -> f64 {
        if self.logarithmic { value.max(1e-3).log10() } else { value }
    }

    /// The range that shows all values: from 0, or in whole decades.
    fn range(self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let places = values.map(|value| self.place(value)).filter(|place| place.is_finite());
        let (low, high) = places.fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(it), high.max(it)));
        if low > high {
            return (0.0, 1.0);
        }
        if self.logarithmic { (low.floor(), high.ceil().max(low.floor() + 1.0)) } else { (0.0, high * 1.08) }
    }

    fn label(self, place: f64) -> String {
        let value = if self.logarithmic { 10f64.powf(place) } else { place };
        if value >= 10_000.0 {
            return format!("{:.0}k", value / 1e3);
        }
        if value < 10.0 && value.fract() > 0.0 { format!("{value:.1}") } else { format!("{value:.0}") }
    }

    fn labels(self, (low, high): (f64, f64)) -> usize {
        if self.logarithmic { (high - low) as usize + 1 } else { 8 }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Places on the x axis, each with the interval of its height.
    pub(crate) points: Vec<(f64, Interval)>,
}

/// The ends of an error bar: those of the interval, unless too few rounds give none.
fn ends(height: &Interval) -> [f64; 2] {
    if height.reaches_target() { [height.low, height.high] } else { [height.median; 2] }
}

/// Lines with error bars, as an SVG image.
pub(crate) fn lines(x: Axis, y: Axis, series: &[Series]) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, x, y, series).map_err(|error| format!("the plot: {error}"))?;
    // Black is the page's text.
    Ok(text.replace("#000000", "currentColor"))
}

fn draw(text: &mut String, x: Axis, y: Axis, series: &[Series]) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    let points = || series.iter().flat_map(|series| &series.points);
    let horizontal = x.range(points().map(|(at, _)| *at));
    let vertical = y.range(points().flat_map(|(_, height)| ends(height)));
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(72)
        .build_cartesian_2d(horizontal.0..horizontal.1, vertical.0..vertical.1)?;
    chart
        .configure_mesh()
        .x_desc(x.title)
        .y_desc(y.title)
        .x_labels(x.labels(horizontal))
        .y_labels(y.labels(vertical))
        .x_label_formatter(&|place| x.label(*place))
        .y_label_formatter(&|place| y.label(*place))
        .light_line_style(BLACK.mix(0.0))
        .bold_line_style(BLACK.mix(0.15))
        .draw()?;
    for (index, series) in series.iter().enumerate() {
        let [_, red, green, blue] = COLOURS[index % COLOURS.len()].to_be_bytes();
        let colour = RGBColor(red, green, blue);
        let place = |(at, height): &(f64, Interval)| (x.place(*at), y.place(height.median));
        chart
            .draw_series(LineSeries::new(series.points.iter().map(place), colour.stroke_width(2)))?
            .label(series.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        chart.draw_series(series.points.iter().map(|point| Circle::new(place(point), 3, colour.filled())))?;
        let bars = series.points.iter().map(|(at, height)| {
            let ends = ends(height).map(|end| (x.place(*at), y.place(end)));
            PathElement::new(ends, colour.stroke_width(1))
        });
        chart.draw_series(bars)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 14))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;

    #[test]
    fn lines_have_error_bars_and_the_colour_of_the_page() {
        let height = median_interval(&[50.0, 50.0, 100.0, 100.0, 200.0, 200.0]);
        let series = [Series { name: "vanilla".to_owned(), points: vec![(1e3, height), (2e5, height)] }];
        let axis = |logarithmic| Axis { title: "an axis", logarithmic };
        let svg = lines(axis(false), axis(true), &series).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("vanilla") && svg.matches("<circle").count() == 2, "{svg}");
        assert!(svg.contains("currentColor") && !svg.contains("#000000"), "{svg}");
        assert!(
            lines(axis(true), axis(true), &[]).unwrap().starts_with("<svg"),
            "an empty plot has its axes"
        );
    }

    #[test]
    fn a_logarithmic_axis_is_labelled_in_decades() {
        let axis = Axis { title: "an axis", logarithmic: true };
        let range = axis.range([35.0, 4_200.0].into_iter());
        assert_eq!((range, axis.labels(range)), ((1.0, 4.0), 4));
        assert_eq!([1.0, 4.0].map(|place| axis.label(place)), ["10", "10k"]);
    }
}
